// Proves that every function that LibTorch passes to oneMKL is called once, before any other.
#include "zero3/torch/first_calls.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

namespace artesian::zero3 {
namespace {

std::map<std::string, int> calls;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  ++calls[function.name()];
  return nullptr;
}

TEST(FirstCalls, AreOfEveryFunctionThatLibTorchGivesToMklInBothPrecisionsAndOnce) {
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  make_first_calls();
  make_first_calls();
  at::removeCallback(handle);
  std::ifstream header(ARTESIAN_VML_HEADER);
  ASSERT_TRUE(header.is_open()) << ARTESIAN_VML_HEADER;
  const std::regex given(R"(^IMPLEMENT_VML_MKL\((\w+), \w+\)$)");
  int functions = 0;
  for (std::string line; std::getline(header, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, given)) continue;
    EXPECT_EQ(calls["aten::" + match[1].str()], 2) << match[1];
    ++functions;
  }
  EXPECT_GE(functions, 10);
}

}  // namespace
}  // namespace artesian::zero3
