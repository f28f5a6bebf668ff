// Proves that a lane of a trace has no more rows than allowed. Spans that overlap are in different
// rows; those beyond the last row share it and are cut where they would overlap.
#include "base/timeline.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

using Row = std::vector<std::pair<double, double>>;  // begin and end of spans, microseconds

std::map<int, Row> rows_of(const Timeline& timeline) {
  const test_support::TemporaryDirectory folder;
  const std::string path = folder.path() + "/trace.json";
  EXPECT_TRUE(timeline.write(path).has_value());
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  std::map<int, Row> rows;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"];
    rows[event["tid"]].emplace_back(begin, begin + event["dur"].get<double>());
  }
  return rows;
}

TEST(Timeline, RowsAboveTheDepthAreFolded) {
  constexpr int rows_max = 32;
  Timeline timeline;
  for (int row = 0; row + 1 < rows_max; ++row) timeline.add(Lane::NvmeRead, "read", 0, 10000, 1);
  EXPECT_EQ(rows_of(timeline).size(), rows_max - 1);
  for (const auto& [begin, end] :
       {std::pair{1000u, 5000u}, {2000u, 8000u}, {3000u, 4000u}, {9000u, 9500u}}) {
    timeline.add(Lane::NvmeRead, "read", begin, end, 1);
  }
  const auto rows = rows_of(timeline);
  ASSERT_EQ(rows.size(), rows_max);
  EXPECT_EQ(rows.at(0), (Row{{0, 10}}));
  EXPECT_EQ(rows.at(rows_max - 1), (Row{{1, 5}, {5, 8}, {4, 4}, {9, 9.5}}));
}

}  // namespace
}  // namespace artesian
