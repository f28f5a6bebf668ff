#include "tiering/disk/profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/units.h"

namespace artesian::tiering {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format = "artesian machine profile";
constexpr std::size_t text_size_max = 1 << 20;

/// Reads fields of an object, and records the first invalid one.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* find(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    blame(name, "is missing");
    return nullptr;
  }
  std::string text(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    blame(name, "must be a string");
    return "";
  }
  bool boolean(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    blame(name, "must be true or false");
    return false;
  }
  std::uint64_t count(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && value->is_number_unsigned() && *value > 0) {
      return value->get<std::uint64_t>();
    }
    blame(name, "must be a whole number above 0");
    return 0;
  }
  std::uint64_t multiple(const char* name, std::uint64_t of, std::uint64_t high) {
    ARTESIAN_CHECK(of != 0 && of <= high, of, high);
    const std::uint64_t value = count(name);
    if (value % of == 0 && value <= high) return value;
    blame(name, fmt::format("must be a multiple of {}, at most {}", of, high));
    return of;
  }
  aio::Polling polling(const char* name) {
    const std::string word = text(name);
    for (const aio::Polling each : aio::pollings) {
      if (word == aio::polling_name(each)) return each;
    }
    blame(name, "must be " + aio::polling_words());
    return aio::Polling::None;
  }
  double number(const char* name, double low, double high) {
    const Json* value = find(name);
    const double got = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
    if (got >= low && got <= high) return got;
    blame(name, fmt::format("must be a number from {:f} to {:f}", low, high));
    return 0;
  }
  void blame(const char* name, const std::string& what) {
    if (fault.empty()) fault = std::string(name) + ": " + what;
  }

  std::string fault;

 private:
  const Json& object_;
};

/// Returns nothing for an older profile, from before the best options were stored.
std::optional<aio::EngineOptions> read_best(const Json& json, Fields& fields) {
  const auto found = json.find("aio");
  if (found == json.end()) return {};
  Fields aio(*found);
  aio::EngineOptions best;
  best.block_size = aio.multiple("block_size", 4096, aio::block_size_max);
  best.queue_depth =
      static_cast<std::uint32_t>(aio.multiple("queue_depth", 1, aio::queue_depth_max));
  best.threads =
      static_cast<std::uint32_t>(aio.multiple("intra_op_parallelism", 1, aio::threads_max));
  best.single_submit = aio.boolean("single_submit");
  best.overlap_events = aio.boolean("overlap_events");
  if (!aio.fault.empty()) fields.blame("aio", aio.fault);
  best.polling = fields.polling("polling");
  return best;
}

Error refusal(ErrorCode code, const std::string& path, const std::string& what) {
  Error error = make_error(code, "this is no machine profile that can be used (" + what +
                                     "); run aio_bench tune again to replace it");
  error.file = path;
  return error;
}

}  // namespace

std::string describe(const aio::EngineOptions& settings) {
  std::string text = fmt::format("block_size {}, queue_depth {}", format_size(settings.block_size),
                                 settings.queue_depth);
  if (settings.threads != 1) text += fmt::format(", intra_op_parallelism {}", settings.threads);
  if (settings.single_submit) text += ", single_submit true";
  if (!settings.overlap_events) text += ", overlap_events false";
  if (settings.polling != aio::Polling::None) {
    text += std::string(", polling ") + aio::polling_name(settings.polling);
  }
  return text;
}

Json aio_section(const aio::EngineOptions& settings) {
  return {{"block_size", settings.block_size},
          {"queue_depth", settings.queue_depth},
          {"intra_op_parallelism", settings.threads},
          {"single_submit", settings.single_submit},
          {"overlap_events", settings.overlap_events}};
}

namespace {

/// Checks that parse_machine_profile() accepts the printed text.
void check_printable(const MachineProfile& profile) {
  ARTESIAN_CHECK(profile.queue_depth != 0 && profile.threads != 0, profile.queue_depth);
  ARTESIAN_CHECK(profile.budget_seconds >= 0.0, profile.budget_seconds);
  for (const MachineProfile::Rate& rate : profile.rates) {
    ARTESIAN_CHECK(rate.block_size != 0);
    ARTESIAN_CHECK(rate.read_share >= 0.0 && rate.read_share <= 1.0, rate.read_share);
    ARTESIAN_CHECK(rate.gb_per_s >= 0.0, rate.gb_per_s);
  }
  if (!profile.best.has_value()) return;
  const aio::EngineOptions& best = *profile.best;
  ARTESIAN_CHECK(best.block_size != 0 && best.block_size % 4096 == 0, best.block_size);
  ARTESIAN_CHECK(best.queue_depth != 0 && best.threads != 0, best.queue_depth, best.threads);
}

}  // namespace

std::string print_machine_profile(const MachineProfile& profile) {
  check_printable(profile);
  Json rates = Json::array();
  for (const MachineProfile::Rate& rate : profile.rates) {
    rates.push_back({{"block_size", rate.block_size},
                     {"read_share", rate.read_share},
                     {"gb_per_s", rate.gb_per_s}});
  }
  Json json = {{"format", format},
               {"version", MachineProfile::version},
               {"path", profile.path},
               {"file_system", profile.file_system},
               {"measured_at", profile.measured_at},
               {"direct", profile.direct},
               {"duplex", profile.duplex},
               {"queue_depth", profile.queue_depth},
               {"threads", profile.threads},
               {"engine", profile.engine}};
  if (profile.size != 0) json["size"] = profile.size;
  if (profile.budget_seconds > 0) json["budget_seconds"] = profile.budget_seconds;
  if (profile.best.has_value()) {
    json["polling"] = aio::polling_name(profile.best->polling);
    json["aio"] = aio_section(*profile.best);
  }
  json["rates"] = std::move(rates);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<MachineProfile> parse_machine_profile(std::string_view text, const std::string& path) {
  if (text.size() > text_size_max) return refusal(ErrorCode::Invalid, path, "it is too large");
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return refusal(ErrorCode::Invalid, path, "no JSON object");
  Fields fields(json);
  if (fields.text("format") != format) {
    return refusal(ErrorCode::Invalid, path, std::string("format: must be \"") + format + "\"");
  }
  const std::uint64_t version = fields.count("version");
  if (version > MachineProfile::version) {
    return refusal(
        ErrorCode::Unsupported, path,
        fmt::format("version: got {}, known up to {}", version, MachineProfile::version));
  }
  MachineProfile profile{.path = fields.text("path"),
                         .file_system = fields.text("file_system"),
                         .measured_at = fields.text("measured_at"),
                         .direct = fields.boolean("direct"),
                         .duplex = fields.boolean("duplex"),
                         .queue_depth = fields.count("queue_depth"),
                         .threads = fields.count("threads"),
                         .engine = fields.text("engine"),
                         .size = json.contains("size") ? fields.count("size") : 0,
                         .budget_seconds = json.contains("budget_seconds")
                                               ? fields.number("budget_seconds", 0, 1e6)
                                               : 0,
                         .best = read_best(json, fields),
                         .rates = {}};
  const Json* rates = fields.find("rates");
  if (rates == nullptr || !rates->is_array()) {
    fields.blame("rates", "must be a list");
  } else {
    for (const Json& each : *rates) {
      Fields rate(each);
      profile.rates.push_back({.block_size = rate.count("block_size"),
                               .read_share = rate.number("read_share", 0, 1),
                               .gb_per_s = rate.number("gb_per_s", 0, 1e6)});
      if (!rate.fault.empty()) fields.blame("rates", rate.fault);
    }
  }
  if (!fields.fault.empty()) return refusal(ErrorCode::Invalid, path, fields.fault);
  return profile;
}

bool is_duplex(double read, double write, double mixed) noexcept {
  if (!(read > 0 && write > 0)) return false;
  const double in_turn = 2 / (1 / read + 1 / write);
  const double at_once = 2 * std::min(read, write);
  return mixed > (in_turn + at_once) / 2;
}

bool MachineProfile::may_replace(const MachineProfile& saved) const noexcept {
  constexpr std::uint64_t size_default = std::uint64_t{2} << 30;
  constexpr double seconds_default = 60;
  return size >= (saved.size != 0 ? saved.size : size_default) &&
         budget_seconds >= (saved.budget_seconds > 0 ? saved.budget_seconds : seconds_default);
}

DiskSpeed MachineProfile::speed(std::uint64_t block_size) const {
  ARTESIAN_CHECK(block_size != 0);
  const auto rate_of = [&](double read_share) {
    double found = 0.0;
    double nearest = 1e30;
    for (const Rate& each : rates) {
      if (each.read_share != read_share || each.block_size == 0) continue;
      const double ratio = static_cast<double>(each.block_size) / static_cast<double>(block_size);
      if (std::abs(std::log(ratio)) >= nearest) continue;
      nearest = std::abs(std::log(ratio));
      found = each.gb_per_s * 1e9;
    }
    return found;
  };
  return {.read_bytes_per_s = rate_of(1), .write_bytes_per_s = rate_of(0)};
}

}  // namespace artesian::tiering
