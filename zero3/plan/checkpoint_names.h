// Names in a folder of checkpoints. They come from users, and from files of strangers, so each is
// checked before anything is opened by it. What is unfinished begins with a dot: other programs
// take folders that match "global_step*" for whole ones.
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

/// True if a text may be a checkpoint's tag: 1 to 200 of letters, digits, '_', '-' and, but not
/// first, '.'.
bool is_checkpoint_tag(std::string_view tag) noexcept;
/// Errors: Invalid, with what is allowed.
Result<void> check_checkpoint_tag(std::string_view tag);

/// The name that a damaged checkpoint is moved to, out of the way of the next one of its tag:
/// "TAG.damaged", then "TAG.damaged2" and so on.
std::string damaged_name(std::string_view tag, std::uint64_t number);
/// True if a name marks a damaged checkpoint: such a folder is ignored.
bool is_damaged_name(std::string_view name) noexcept;

/// True if a text may name a file of the caller's: as a tag. It is kept as "client-NAME".
bool is_client_name(std::string_view name) noexcept;
std::string client_file_name(std::string_view name);

/// True if a manifest may speak of such a file: "client-NAME", or "model/NAME" where NAME does not
/// begin with a dot.
bool is_side_file(std::string_view name) noexcept;

/// "rank3.safetensors", and "rank3.sums" for it.
std::string rank_file_name(std::uint32_t rank);
bool is_data_file(std::string_view name) noexcept;
std::string sums_file_name(std::string_view data_file);

/// A folder, or file, that is not a checkpoint, yet or any more.
struct DotName {
  enum class Kind : std::uint8_t {
    Temporary,  // ".tmp-TAG-ID": being written
    Replaced,   // ".old-TAG-ID": stood where another one of its tag is to stand
    Pruned,     // ".gone-TAG-ID": being removed
    Spare,      // ".spare-ID": a file with the room of a rank's
    Latest,     // ".latest-ID": to become "latest"
  };
  Kind kind = Kind::Temporary;
  std::string tag{};
  std::uint64_t id = 0;

  std::string name() const;
};
/// Nothing for a name that is not ours.
std::optional<DotName> parse_dot_name(std::string_view name);

/// 16 hex digits, and back; nothing for anything else.
std::string hex_of(std::uint64_t number);
std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept;

/// True if a text is UTF-8, as every name in a safetensors file must be.
bool is_utf8(std::string_view text) noexcept;

}  // namespace artesian::zero3
