// CheckpointLayout: where every byte of one rank's data file of a checkpoint lies. The file is a
// valid safetensors file that contains the images of units (layout.h) unchanged. An image, or a
// rank's share of it, is a multiple of 2048 elements. So each sub-group of each array begins and
// ends at a multiple of 4096 bytes, and can be written by itself, in any order, with direct I/O.
// The header is padded to such a multiple. Padding between parameters is stored as tensors named
// "~0", "~1" and so on, as the format allows no holes.
//
// Tensor names are for people and other programs. Our own readers use the table `parts`, which the
// manifest stores, as a parameter's name may be any text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/safetensors_header.h"
#include "tiering/snapshot_block.h"
#include "zero3/config/optimizers.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

/// The arrays of a checkpoint. Which of them a unit has depends on its StateForm.
enum class SavedArray : std::uint8_t {
  Master,      // "fp32/NAME": master weights
  MasterHigh,  // "fp32_high/NAME": upper halves of split master weights, which are the bf16 weights
  MasterLow,   // "fp32_low/NAME": their lower halves (kernels/split_master.h)
  ExpAvg,      // "exp_avg/NAME"
  ExpAvgSq,    // "exp_avg_sq/NAME"
  ExpAvgSqSigned,  // "exp_avg_sq_signed/NAME": squares of split weights; the sign is the tie bit
  Weight,          // "weight/NAME": a frozen parameter, in its own dtype
  // Moments of optimizers other than Adam, under their torch.optim names; Lion uses ExpAvg.
  MomentumBuffer,
  Sum,
  SumSigned,
  SquareAvg,
  SquareAvgSigned,
};
inline constexpr std::size_t saved_array_count = 12;

/// The manifest's description of an array: its role and encoding.
struct SavedArrayFormat {
  std::string_view name;
  std::string_view role;      // "master", "weight", or a moment: "exp_avg", "sum"
  std::string_view encoding;  // "plain", "split-v1(high)", "split-v1(low)", "split-v1(tie)"
  std::string_view dtype;     // safetensors dtype of a moment; empty: F32, F16 or BF16 are allowed
                              // if "F32", BF16 is allowed, too
};
const SavedArrayFormat& format_of(SavedArray array) noexcept;
/// Which of an optimizer's moments an array holds; None if it holds none.
enum class MomentKind : std::uint8_t { None, Average, Squares, SignedSquares };
MomentKind moment_kind(SavedArray array) noexcept;
/// Finds the array of this name. Errors: Unsupported (unknown role, encoding or dtype).
Result<SavedArray> find_saved_array(std::string_view name, std::string_view role,
                                    std::string_view encoding, std::string_view dtype);

/// Which arrays, besides moments, a unit's state consists of.
enum class StateForm : std::uint8_t {
  Whole,   // fp32 master weights, kept in the optimizer's records or as the parameters: Master
  Split,   // MasterHigh and MasterLow; squares carry a tie bit in their sign
  Frozen,  // Weight, without moments
};

/// A unit's image, or this rank's part of it.
struct SavedImage {
  struct Parameter {
    std::uint32_t parameter = 0;
    std::uint64_t first = 0;  // index of its first element in the image
    std::uint64_t numel = 0;
  };
  std::vector<Parameter> parameters{};  // parameters in image order
  std::uint64_t first = 0;              // this rank has the image's elements [first, first + count)
  std::uint64_t count = 0;              // both are multiples of 2048
  std::uint64_t sub_group = 0;          // elements that are written at once, a multiple of 2048
  StateForm form = StateForm::Whole;
  DType frozen_dtype = DType::Float32;  // dtype of a Frozen image
  Moments moments{};                    // moments of Whole and Split images
  DType moment_dtype = DType::Float32;  // dtype of the moments: Float32 or BFloat16
};
/// The image's arrays, in the order of the file.
std::vector<SavedArray> arrays_of(const SavedImage& image);

/// A module's buffer: not trained, of any dtype of the safetensors format.
struct SavedBuffer {
  std::string name{};
  const SafetensorsType* type = nullptr;
  std::vector<std::uint64_t> shape{};
};

/// Elements [first, first + count) of a parameter in one array, as stored in a file.
struct SavedPart {
  SavedArray array = SavedArray::Master;
  const SafetensorsType* type = nullptr;
  std::uint32_t parameter = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint32_t file = 0;    // index into the manifest's data files
  std::uint64_t offset = 0;  // bytes into the file

  std::uint64_t bytes() const noexcept { return count * type->bits / 8; }
};

struct SavedBufferPlace {
  SavedBuffer buffer{};
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // bytes into the file
  std::uint64_t bytes = 0;
};

using CheckpointBlock = tiering::SnapshotBlock;

/// Blocks [first, first + count) of a file.
struct BlockRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

class CheckpointLayout {
 public:
  /// The header's length and the header: everything before the first block.
  const std::string& head() const noexcept { return head_; }
  /// In file order, without gaps, up to the end of the file.
  const std::vector<CheckpointBlock>& blocks() const noexcept { return blocks_; }
  std::uint64_t file_bytes() const noexcept;
  const std::vector<SavedPart>& parts() const noexcept { return parts_; }
  const std::vector<SavedBufferPlace>& buffers() const noexcept { return buffers_; }

  /// The blocks of one sub-group of one array of an image; all but the last have bytes_max.
  BlockRange blocks_of(std::size_t image, SavedArray array, std::uint64_t sub_group) const noexcept;
  /// The blocks of all buffers. The buffers' bytes lie at `buffers()`; the rest of the blocks is
  /// zero.
  BlockRange buffer_blocks() const noexcept { return buffer_blocks_; }

 private:
  friend class CheckpointLayoutMaker;
  struct Array {
    SavedArray array = SavedArray::Master;
    std::uint64_t first_block = 0;
    std::uint64_t blocks_per_sub_group = 0;
    std::uint64_t blocks = 0;  // blocks of the whole array
  };

  std::string head_;
  std::vector<CheckpointBlock> blocks_;
  std::vector<SavedPart> parts_;
  std::vector<SavedBufferPlace> buffers_;
  std::vector<std::vector<Array>> arrays_;  // arrays, by image
  BlockRange buffer_blocks_;
};

/// The layout of a file. `file`: its index, for the table. Errors: Invalid: a name that is not
/// UTF-8; Exhausted: more tensors than a safetensors header may hold.
Result<CheckpointLayout> make_checkpoint_layout(const std::vector<ParameterSpec>& parameters,
                                                const std::vector<SavedImage>& images,
                                                const std::vector<SavedBuffer>& buffers,
                                                std::uint32_t file);

/// Bytes of a data file without its header and buffers: the size of a checkpoint.
std::uint64_t checkpoint_data_bytes(const std::vector<SavedImage>& images) noexcept;

}  // namespace artesian::zero3
