// Any bytes as a name: accepted tags, client names, files and unfinished names contain no path, and
// a parsed name is written as it was.
#include "base/check.h"
#include "base/durable_folder.h"
#include "tests/support/fuzz_input.h"
#include "zero3/plan/checkpoint_names.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace artesian;
  using namespace artesian::zero3;
  const std::string name(reinterpret_cast<const char*>(data), size);
  if (is_checkpoint_tag(name)) {
    ARTESIAN_CHECK(is_component(name) && is_utf8(name) && name.front() != '.');
    ARTESIAN_CHECK(!parse_dot_name(name).has_value());
    ARTESIAN_CHECK(is_component(DotName{DotName::Kind::Temporary, name, 1}.name()));
    ARTESIAN_CHECK(is_side_file(client_file_name(name)));
  } else {
    const auto refused = check_checkpoint_tag(name);
    ARTESIAN_CHECK(!refused.has_value());
    test_support::check_shown(refused.error().to_string(), 1);
  }
  if (const auto dot = parse_dot_name(name))
    ARTESIAN_CHECK(dot->name() == name && is_component(name));
  if (is_data_file(name)) ARTESIAN_CHECK(is_component(name) && is_component(sums_file_name(name)));
  if (is_side_file(name)) {
    const std::size_t slash = name.find('/');
    ARTESIAN_CHECK(is_component(name.substr(slash == std::string::npos ? 0 : slash + 1)));
    ARTESIAN_CHECK(slash == std::string::npos || name.substr(0, slash) == model_folder_name);
  }
  return 0;
}
