// Names in a folder of checkpoints. They come from users and from strangers' files, so each is
// checked before use. Names of unfinished checkpoints begin with a dot, as other programs take
// folders that match "global_step*" for complete ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace artesian::zero3 {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view latest_name = "latest";
inline constexpr std::string_view checkpoint_lock_name = ".lock";
inline constexpr std::string_view model_folder_name = "model";
inline constexpr std::string_view frozen_file_name = "frozen.safetensors";

/// True if a text is a valid checkpoint tag: 1 to 200 characters out of letters, digits, '_', '-'
/// and '.', which must not be first.
bool is_checkpoint_tag(std::string_view tag) noexcept;
/// Checks a tag. Errors: Invalid, with what is allowed.
Result<void> check_checkpoint_tag(std::string_view tag);

/// The name to which a damaged checkpoint is moved, out of the way of the next one with its tag:
/// "TAG.damaged", then "TAG.damaged2" and so on.
std::string damaged_name(std::string_view tag, std::uint64_t number);
/// True if a name marks a damaged checkpoint: such a folder is ignored.
bool is_damaged_name(std::string_view name) noexcept;

/// True if a text is a valid name for a file of the caller's, by the rules for tags. The file is
/// kept as "client-NAME".
bool is_client_name(std::string_view name) noexcept;
std::string client_file_name(std::string_view name);

/// True if a manifest may refer to a file of this name: "client-NAME", or "model/NAME" where NAME
/// does not begin with a dot.
bool is_side_file(std::string_view name) noexcept;

/// "rank3.safetensors", and its checksums "rank3.sums".
std::string rank_file_name(std::uint32_t rank);
bool is_data_file(std::string_view name) noexcept;
std::string sums_file_name(std::string_view data_file);

/// A folder or file that is not a checkpoint yet, or no longer one.
struct DotName {
  enum class Kind : std::uint8_t {
    Temporary,  // ".tmp-TAG-ID": being written
    Replaced,   // ".old-TAG-ID": had the place of a new checkpoint with the same tag
    Pruned,     // ".gone-TAG-ID": being removed
    Spare,      // ".spare-ID": a reserved file with the size of a rank's data file
    Latest,     // ".latest-ID": will be renamed to "latest"
  };
  Kind kind = Kind::Temporary;
  std::string tag{};
  std::uint64_t id = 0;

  std::string name() const;
};
/// Parses such a name; nothing for any other name.
std::optional<DotName> parse_dot_name(std::string_view name);

/// A number as 16 hex digits, and back; nothing for any other text.
std::string hex_of(std::uint64_t number);
std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept;

/// True if a text is UTF-8, as every name in a safetensors file must be.
bool is_utf8(std::string_view text) noexcept;

}  // namespace artesian::zero3
