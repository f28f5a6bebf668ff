#include "zero3/plan/checkpoint_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "zero3/plan/checkpoint_names.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t grain = 4096;
constexpr std::uint64_t buffer_alignment = 64;

constexpr std::array<SavedArrayFormat, saved_array_count> formats{
    {{"fp32", "master", "plain", "F32"},
     {"fp32_high", "master", "split-v1(high)", "BF16"},
     {"fp32_low", "master", "split-v1(low)", "I16"},
     {"exp_avg", "exp_avg", "plain", "F32"},
     {"exp_avg_sq", "exp_avg_sq", "plain", "F32"},
     {"exp_avg_sq_signed", "exp_avg_sq", "split-v1(tie)", "F32"},
     {"weight", "weight", "plain", ""},
     {"momentum_buffer", "momentum_buffer", "plain", "F32"},
     {"sum", "sum", "plain", "F32"},
     {"sum_signed", "sum", "split-v1(tie)", "F32"},
     {"square_avg", "square_avg", "plain", "F32"},
     {"square_avg_signed", "square_avg", "split-v1(tie)", "F32"}}};

SavedArray find_moment(std::string_view role, bool is_signed) noexcept {
  const auto found = std::find_if(formats.begin(), formats.end(), [&](const auto& format) {
    return format.role == role && (format.encoding != "plain") == is_signed;
  });
  ARTESIAN_CHECK(found != formats.end(), is_signed);
  return static_cast<SavedArray>(found - formats.begin());
}

const SafetensorsType* type_of(SavedArray array, const SavedImage& image) noexcept {
  const SavedArrayFormat& format = format_of(array);
  if (moment_kind(array) != MomentKind::None) return safetensors_type(image.moment_dtype);
  return format.dtype.empty() ? safetensors_type(image.frozen_dtype)
                              : find_safetensors_type(format.dtype);
}

std::uint64_t bytes_of(const SavedBuffer& buffer) noexcept {
  std::uint64_t bits = buffer.type->bits;
  for (const std::uint64_t extent : buffer.shape) bits *= extent;
  return bits / 8;
}

}  // namespace

const SavedArrayFormat& format_of(SavedArray array) noexcept {
  const auto index = static_cast<std::size_t>(array);
  ARTESIAN_CHECK(index < formats.size(), index);
  return formats[index];
}

Result<SavedArray> find_saved_array(std::string_view name, std::string_view role,
                                    std::string_view encoding, std::string_view dtype) {
  for (std::size_t index = 0; index < formats.size(); ++index) {
    const SavedArrayFormat& format = formats[index];
    const bool is_moment = moment_kind(static_cast<SavedArray>(index)) != MomentKind::None;
    const bool known_dtype = format.dtype.empty()
                                 ? dtype == "F32" || dtype == "F16" || dtype == "BF16"
                                 : dtype == format.dtype || (dtype == "BF16" && is_moment);
    if (name == format.name && role == format.role && encoding == format.encoding && known_dtype) {
      return static_cast<SavedArray>(index);
    }
  }
  return make_error(ErrorCode::Unsupported,
                    "array " + shown_name(name) + ": role " + shown_name(role) + ", encoding " +
                        shown_name(encoding) + ", dtype " + shown_name(dtype) +
                        ": not known to this version; a newer one may read it");
}

MomentKind moment_kind(SavedArray array) noexcept {
  const SavedArrayFormat& format = format_of(array);
  if (format.role == "master" || format.role == "weight") return MomentKind::None;
  if (format.encoding != "plain") return MomentKind::SignedSquares;
  const bool average = format.role == "exp_avg" || format.role == "momentum_buffer";
  return average ? MomentKind::Average : MomentKind::Squares;
}

std::vector<SavedArray> arrays_of(const SavedImage& image) {
  if (image.form == StateForm::Frozen) return {SavedArray::Weight};
  const bool split = image.form == StateForm::Split;
  std::vector<SavedArray> arrays{SavedArray::Master};
  if (split) arrays = {SavedArray::MasterHigh, SavedArray::MasterLow};
  const Moments& moments = image.moments;
  if (!moments.average.empty()) arrays.push_back(find_moment(moments.average, false));
  if (!moments.squares.empty()) arrays.push_back(find_moment(moments.squares, split));
  return arrays;
}

std::uint64_t CheckpointLayout::file_bytes() const noexcept {
  return blocks_.empty() ? head_.size() : blocks_.back().offset + blocks_.back().length;
}

BlockRange CheckpointLayout::blocks_of(std::size_t image, SavedArray array,
                                       std::uint64_t sub_group) const noexcept {
  ARTESIAN_CHECK(image < arrays_.size(), image, arrays_.size());
  const auto& arrays = arrays_[image];
  const auto found = std::find_if(arrays.begin(), arrays.end(),
                                  [&](const Array& each) { return each.array == array; });
  ARTESIAN_CHECK(found != arrays.end(), image, static_cast<int>(array));
  const std::uint64_t first = sub_group * found->blocks_per_sub_group;
  ARTESIAN_CHECK(first < found->blocks, sub_group, found->blocks);
  return {found->first_block + first, std::min(found->blocks_per_sub_group, found->blocks - first)};
}

/// Lays tensors one after the other at offsets into the data; the header, and with it the offset of
/// the data, is only known at the end.
class CheckpointLayoutMaker {
 public:
  CheckpointLayoutMaker(const std::vector<ParameterSpec>& parameters, std::uint32_t file)
      : parameters_(parameters), file_(file) {}

  Result<void> add_image(const SavedImage& image) {
    check(image);
    layout_.arrays_.emplace_back();
    for (const SavedArray array : arrays_of(image)) {
      ARTESIAN_TRY_VOID(add_array(image, array));
    }
    return {};
  }

  Result<void> add_buffers(const std::vector<SavedBuffer>& buffers) {
    const std::uint64_t begin = position_;
    for (const SavedBuffer& buffer : buffers) {
      ARTESIAN_CHECK(buffer.type != nullptr);
      ARTESIAN_TRY_VOID(check_name(buffer.name));
      add_gap(round_up(position_, buffer_alignment));
      const std::uint64_t bytes = bytes_of(buffer);
      layout_.buffers_.push_back({buffer, file_, position_, bytes});
      add_tensor("buffer/" + buffer.name, buffer.type, buffer.shape, bytes);
    }
    add_gap(round_up(position_, grain));
    layout_.buffer_blocks_.first = layout_.blocks_.size();
    add_blocks(begin, position_ - begin);
    layout_.buffer_blocks_.count = layout_.blocks_.size() - layout_.buffer_blocks_.first;
    return {};
  }

  Result<CheckpointLayout> finish() {
    layout_.head_ = write_safetensors_header(tensors_, grain);
    if (layout_.head_.size() > safetensors_header_size_max) {
      return make_error(ErrorCode::Exhausted,
                        "checkpoint: its header would have " + format_size(layout_.head_.size()) +
                            ", allowed 100 MB; the model has too many tensors for one file");
    }
    const std::uint64_t data = layout_.head_.size();
    for (CheckpointBlock& block : layout_.blocks_) block.offset += data;
    for (SavedPart& part : layout_.parts_) part.offset += data;
    for (SavedBufferPlace& place : layout_.buffers_) place.offset += data;
    check_blocks();
    return std::move(layout_);
  }

 private:
  static void check(const SavedImage& image) {
    ARTESIAN_CHECK(image.first % image_alignment == 0 && image.count % image_alignment == 0,
                   image.first, image.count);
    ARTESIAN_CHECK(image.sub_group > 0 && image.sub_group % image_alignment == 0, image.sub_group);
  }

  /// Checks that blocks are contiguous up to the file's end, and that parts lie within them.
  void check_blocks() const {
    std::uint64_t end = layout_.head_.size();
    for (const CheckpointBlock& block : layout_.blocks_) {
      ARTESIAN_CHECK(block.offset == end && end % grain == 0, block.offset, end);
      ARTESIAN_CHECK(block.length != 0 && block.length % grain == 0, block.length);
      end += block.length;
    }
    ARTESIAN_CHECK(end == layout_.head_.size() + position_, end, position_);
    for (const SavedPart& part : layout_.parts_) {
      ARTESIAN_CHECK(part.offset + part.bytes() <= end, part.parameter, part.offset, end);
    }
  }

  static Result<void> check_name(const std::string& name) {
    if (is_utf8(name)) return {};
    return make_error(ErrorCode::Invalid, "checkpoint: the name " + shown_name(name) +
                                              " is not UTF-8, which every name in a safetensors "
                                              "file must be; rename it");
  }

  Result<void> add_array(const SavedImage& image, SavedArray array) {
    const SafetensorsType* const type = type_of(array, image);
    ARTESIAN_CHECK(type != nullptr && type->bits % 8 == 0, static_cast<int>(array));
    const std::uint64_t size = type->bits / 8;
    const std::uint64_t begin = position_;
    ARTESIAN_CHECK(begin % grain == 0, begin);  // no two sub-groups share a sector
    const std::uint64_t end = image.first + image.count;
    for (const SavedImage::Parameter& at : image.parameters) {
      const std::uint64_t from = std::max(at.first, image.first);
      const std::uint64_t to = std::min(at.first + at.numel, end);
      if (from >= to) continue;
      ARTESIAN_CHECK(at.parameter < parameters_.size(), at.parameter, parameters_.size());
      const ParameterSpec& parameter = parameters_[at.parameter];
      ARTESIAN_CHECK(at.numel == parameter.numel(), at.numel, parameter.numel());
      ARTESIAN_TRY_VOID(check_name(parameter.name));
      add_gap(begin + (from - image.first) * size);
      const SavedPart part{.array = array,
                           .type = type,
                           .parameter = at.parameter,
                           .first = from - at.first,
                           .count = to - from,
                           .file = file_,
                           .offset = position_};
      layout_.parts_.push_back(part);
      std::string name = std::string(format_of(array).name) + "/" + parameter.name;
      std::vector<std::uint64_t> shape(parameter.shape.begin(), parameter.shape.end());
      if (part.count != at.numel) {
        name += fmt::format("@{}", part.first);
        shape = {part.count};
      }
      add_tensor(std::move(name), type, std::move(shape), part.bytes());
    }
    add_gap(begin + image.count * size);
    add_array_blocks(image, array, begin, size);
    return {};
  }

  void add_array_blocks(const SavedImage& image, SavedArray array, std::uint64_t begin,
                        std::uint64_t size) {
    CheckpointLayout::Array added{
        .array = array,
        .first_block = layout_.blocks_.size(),
        .blocks_per_sub_group = divide_up(image.sub_group * size, CheckpointBlock::bytes_max)};
    for (std::uint64_t done = 0; done < image.count; done += image.sub_group) {
      const std::uint64_t elements = std::min(image.sub_group, image.count - done);
      add_blocks(begin + done * size, elements * size);
    }
    added.blocks = layout_.blocks_.size() - added.first_block;
    const std::uint64_t sub_groups = divide_up(image.count, image.sub_group);
    ARTESIAN_CHECK(divide_up(added.blocks, added.blocks_per_sub_group) == sub_groups, added.blocks,
                   added.blocks_per_sub_group, sub_groups);
    layout_.arrays_.back().push_back(added);
  }

  void add_blocks(std::uint64_t begin, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += CheckpointBlock::bytes_max) {
      layout_.blocks_.push_back({begin + done, std::min(bytes - done, CheckpointBlock::bytes_max)});
    }
  }

  /// Fills the bytes up to `end`, if any, with an unnamed tensor.
  void add_gap(std::uint64_t end) {
    ARTESIAN_CHECK(position_ <= end, position_, end);
    if (position_ == end) return;
    const std::uint64_t bytes = end - position_;
    add_tensor(fmt::format("~{}", gaps_++), find_safetensors_type("U8"), {bytes}, bytes);
  }

  void add_tensor(std::string name, const SafetensorsType* type, std::vector<std::uint64_t> shape,
                  std::uint64_t bytes) {
    // A cut parameter "w" and a whole one named "w@0" would collide: only the table must
    // distinguish them, so any free name will do.
    while (!names_.insert(name).second) name += '\'';
    tensors_.push_back({std::move(name), type, std::move(shape), position_, position_ + bytes});
    position_ += bytes;
  }

  static std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) noexcept {
    return (value + by - 1) / by;
  }

  const std::vector<ParameterSpec>& parameters_;
  const std::uint32_t file_;
  CheckpointLayout layout_;
  std::vector<SafetensorsTensor> tensors_;
  std::set<std::string> names_;
  std::uint64_t position_ = 0;  // bytes into the data
  std::uint64_t gaps_ = 0;
};

Result<CheckpointLayout> make_checkpoint_layout(const std::vector<ParameterSpec>& parameters,
                                                const std::vector<SavedImage>& images,
                                                const std::vector<SavedBuffer>& buffers,
                                                std::uint32_t file) {
  CheckpointLayoutMaker maker(parameters, file);
  for (const SavedImage& image : images) ARTESIAN_TRY_VOID(maker.add_image(image));
  ARTESIAN_TRY_VOID(maker.add_buffers(buffers));
  return maker.finish();
}

std::uint64_t checkpoint_data_bytes(const std::vector<SavedImage>& images) noexcept {
  std::uint64_t bytes = 0;
  for (const SavedImage& image : images) {
    for (const SavedArray array : arrays_of(image)) {
      bytes += image.count * (type_of(array, image)->bits / 8);
    }
  }
  return bytes;
}

}  // namespace artesian::zero3
