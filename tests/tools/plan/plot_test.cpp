// Proves that nothing in the picture of a plan overlaps or leaves the picture: the boxes of its
// texts, as wide as svg_text_width says, are inside it and overlap no other text, no bar and no
// mark of a legend.
#include <gtest/gtest.h>

#include "tools/plan/report.h"
#include "tools/shell/svg.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

/// A picture with every lane and every kind of memory, of a step of these seconds.
std::string picture(double seconds, std::uint64_t elements, double tokens_per_s) {
  models::ModelConfig model;
  model.model_type = "mistral";
  PlanCase plan;
  plan.model = &model;
  PlanReport report;
  report.plan = &plan;
  PlanFigures& figures = report.figures;
  figures.elements = elements;
  figures.tokens_per_s = tokens_per_s;
  figures.idle_share = 1.0;
  figures.bottleneck = "param NVMe write";
  const std::uint64_t each = elements / 3;
  figures.device = figures.host = figures.nvme = {.budget = 1023 * gib,
                                                  .param = each,
                                                  .grad = each,
                                                  .optimizer = each,
                                                  .gathered = each,
                                                  .buffers = each,
                                                  .input = each};
  figures.time.seconds = seconds;
  for (std::size_t index = 0; index < zero3::resource_count; ++index) {
    figures.time.busy[index] = seconds;
    figures.time.spans.push_back(
        {.resource = static_cast<zero3::Resource>(index), .begin = 0.0, .end = seconds});
  }
  return plan_svg(report);
}

struct Box {
  double left = 0.0, top = 0.0, right = 0.0, bottom = 0.0;
  std::string what;
};

bool overlap(const Box& a, const Box& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/// Returns the value in `<tag key="value" ...`; empty without it.
std::string value_of(const std::string& tag, const std::string& key) {
  const std::string begin = " " + key + "=\"";
  const std::size_t at = tag.find(begin);
  if (at == std::string::npos) return "";
  const std::size_t from = at + begin.size();
  return tag.substr(from, tag.find('"', from) - from);
}

double number_of(const std::string& tag, const std::string& key) {
  return std::stod(value_of(tag, key));
}

/// Every `<name ...>`, with the text up to the next tag.
std::vector<std::pair<std::string, std::string>> elements_of(const std::string& svg,
                                                             const std::string& name) {
  std::vector<std::pair<std::string, std::string>> found;
  for (std::size_t at = 0; (at = svg.find("<" + name + " ", at)) != std::string::npos;) {
    const std::size_t end = svg.find('>', at);
    const std::size_t next = svg.find('<', end);
    found.emplace_back(svg.substr(at, end - at), svg.substr(end + 1, next - end - 1));
    at = next;
  }
  return found;
}

std::vector<Box> texts_of(const std::string& svg) {
  std::vector<Box> boxes;
  for (const auto& [tag, text] : elements_of(svg, "text")) {
    const std::string look = value_of(tag, "class");
    const auto is = [&](const char* word) { return look.find(word) != std::string::npos; };
    const double size = is("title") ? 20 : is("small") ? 11 : 13;  // as svg_style has it
    const double width = svg_text_width(text, size);
    const double left = number_of(tag, "x") - (is("end") ? width : is("middle") ? width / 2 : 0);
    const double base = number_of(tag, "y");
    boxes.push_back({left, base - 0.75 * size, left + width, base + 0.22 * size, text});
  }
  return boxes;
}

/// All bars but the background.
std::vector<Box> bars_of(const std::string& svg) {
  std::vector<Box> boxes;
  for (const auto& [tag, text] : elements_of(svg, "rect")) {
    if (value_of(tag, "class") == "ground") continue;
    const double left = number_of(tag, "x");
    const double top = number_of(tag, "y");
    boxes.push_back(
        {left, top, left + number_of(tag, "width"), top + number_of(tag, "height"), tag});
  }
  return boxes;
}

TEST(PlanPlot, NoTextRunsIntoAnythingOrOutOfThePicture) {
  for (const double seconds :
       {2.17e-4, 0.02177, 0.1234, 9.876, 99.96, 999.7, 12345.6, 98765432.1}) {
    for (const std::uint64_t elements : {123'456'789ull, 70'120'000'000ull, 9'999'999'999'999ull}) {
      const std::string svg = picture(seconds, elements, 1e7 / seconds);
      SCOPED_TRACE(std::to_string(seconds) + " s, " + std::to_string(elements));
      const auto texts = texts_of(svg);
      const auto bars = bars_of(svg);
      ASSERT_GE(texts.size(), 30u);
      ASSERT_GE(bars.size(), 30u);
      const std::string size = value_of(elements_of(svg, "svg").front().first, "viewBox");
      double width = 0.0;
      double height = 0.0;
      ASSERT_EQ(std::sscanf(size.c_str(), "0 0 %lf %lf", &width, &height), 2);
      for (std::size_t index = 0; index < texts.size(); ++index) {
        const Box& text = texts[index];
        EXPECT_TRUE(text.left >= 0 && text.right <= width && text.bottom <= height) << text.what;
        for (std::size_t other = 0; other < index; ++other) {
          EXPECT_FALSE(overlap(text, texts[other])) << text.what << " and " << texts[other].what;
        }
        for (const Box& bar : bars) {
          EXPECT_FALSE(overlap(text, bar)) << text.what << " and " << bar.what;
        }
      }
    }
  }
}

TEST(PlanPlot, TicksAreRoundAndPaleBarsAreExplained) {
  for (const auto& [seconds, expected] :
       {std::pair{0.83, std::vector{"0", "0.2", "0.4", "0.6", "0.8"}},
        std::pair{7.4, std::vector{"0", "1", "2", "3", "4", "5", "6", "7"}},
        std::pair{200.0, std::vector{"0", "50", "100", "150", "200"}},
        std::pair{12345.6, std::vector{"0", "2000", "4000", "6000", "8000", "10000", "12000"}}}) {
    const std::string svg = picture(seconds, 1'000'000'000, 100.0);
    for (const char* tick : expected) {
      EXPECT_NE(svg.find(">" + std::string(tick) + " s<"), std::string::npos)
          << seconds << ": " << tick;
    }
    EXPECT_NE(svg.find("pale bar is many short ones"), std::string::npos);
  }
}

TEST(PlanPlot, NumbersHaveNoExponentBeyondThatOfAFlag) {
  const std::string svg = picture(12345.6, 70'120'000'000, 340'800.4);
  EXPECT_NE(svg.find(">mistral, 70.12e9 parameters: 12346 s a step<"), std::string::npos);
  EXPECT_NE(svg.find(">340800 tokens/s, "), std::string::npos);
  EXPECT_NE(svg.find(">4000 s<"), std::string::npos);
  EXPECT_EQ(svg.find("e+0"), std::string::npos);
  EXPECT_NE(picture(1.0, 999'990'000, 1.0).find(">mistral, 1e9 parameters"), std::string::npos);
}

}  // namespace
}  // namespace artesian::tools
