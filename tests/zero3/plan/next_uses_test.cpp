// Proves the answers of AccessOrder and NextUses, which take logarithmic time, against walks and
// scans: for random traces that are cut and recorded again, and for units that change at random.
#include "zero3/plan/next_uses.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "zero3/plan/access_order.h"

namespace artesian::zero3 {
namespace {

TEST(AccessOrder, AnswersAsAWalkDoes) {
  constexpr std::uint32_t units = 9;
  std::vector<std::uint64_t> numel;
  for (std::uint64_t unit = 0; unit < units; ++unit) numel.push_back(100 + unit * unit);
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random_word(41, 0, draw++) % bound; };
  AccessOrder trace(numel);
  std::vector<AccessOrder::Access> accesses;
  for (int round = 0; round < 200; ++round) {
    const auto kept = static_cast<std::size_t>(below(accesses.size() + 1));
    accesses.resize(kept);
    trace.truncate(kept);
    for (std::uint64_t more = below(12); more != 0; --more) {
      AccessOrder::Access access;
      for (std::uint32_t unit = 0; unit < units - 1; ++unit) {  // the last one is never used
        if (below(4) == 0) access.push_back(unit);
      }
      accesses.push_back(access);
      trace.record(access);
    }
    ASSERT_EQ(trace.size(), accesses.size());
    for (std::size_t from = 0; from <= accesses.size(); ++from) {  // index + 1
      for (std::uint32_t unit = 0; unit < units; ++unit) {
        std::uint64_t ahead = 1;
        std::uint64_t distance = 0;
        for (; ahead <= accesses.size(); ++ahead) {
          const auto& access = accesses[(from + ahead - 1) % accesses.size()];
          if (std::find(access.begin(), access.end(), unit) != access.end()) break;
          for (const auto touched : access) distance += numel[touched];
        }
        const bool used = ahead <= accesses.size();
        ASSERT_EQ(trace.next_use(from - 1, unit), used ? ahead : AccessOrder::never);
        ASSERT_EQ(trace.reuse_distance(from - 1, unit), used ? distance : AccessOrder::never);
      }
    }
  }
}

struct Entry {
  Holding holding = Holding::Ignored;
  std::uint64_t ordinal = 0;
};

void expect_answers(const NextUses& uses, const std::vector<Entry>& entries,
                    const std::vector<std::uint64_t>& numel, std::uint64_t now,
                    std::uint64_t round) {
  NextUses::Use farthest;
  std::uint64_t first_absent = NextUses::never;
  for (std::uint32_t unit = 0; unit < entries.size(); ++unit) {
    const Entry& entry = entries[unit];
    if (entry.holding == Holding::Absent) first_absent = std::min(first_absent, entry.ordinal);
    if (entry.holding != Holding::Evictable || entry.ordinal <= farthest.ordinal) continue;
    farthest = {unit, entry.ordinal};
  }
  ASSERT_EQ(uses.first_absent(), first_absent);
  ASSERT_EQ(uses.farthest().ordinal, farthest.ordinal);
  if (farthest.ordinal != 0) {
    ASSERT_EQ(uses.farthest().unit, farthest.unit);
  }
  for (std::uint64_t ordinal = now; ordinal <= now + round; ++ordinal) {
    std::uint64_t later = 0;
    for (std::size_t unit = 0; unit < entries.size(); ++unit) {
      const Entry& entry = entries[unit];
      if (entry.holding == Holding::Evictable && entry.ordinal > ordinal) later += numel[unit];
    }
    ASSERT_EQ(uses.evictable_after(now, ordinal), later) << now << " " << ordinal;
  }
}

TEST(NextUses, AnswersAsAScanDoes) {
  for (const std::uint64_t units : {1u, 2u, 5u, 16u}) {
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) { return random_word(42, units, draw++) % bound; };
    std::vector<std::uint64_t> numel;
    for (std::uint64_t unit = 0; unit < units; ++unit) numel.push_back(1 + below(1000));
    NextUses uses(numel);
    for (int run = 0; run < 30; ++run) {
      const std::uint64_t round = below(10);  // 0: while recording, no unit has a next use
      std::uint64_t now = below(100);
      uses.reset(round);
      std::vector<Entry> entries(units);
      for (int change = 0; change < 60; ++change) {
        const auto unit = static_cast<std::uint32_t>(below(units));
        const bool never = round == 0 || below(4) == 0;
        entries[unit] = {static_cast<Holding>(below(3)),
                         never ? NextUses::never : now + 1 + below(round)};
        uses.set(unit, entries[unit].holding, entries[unit].ordinal);
        expect_answers(uses, entries, numel, now, round);
        if (round == 0 || below(3) != 0) continue;
        ++now;  // a unit used now is needed a round later
        for (std::uint32_t used = 0; used < units; ++used) {
          if (entries[used].ordinal != now) continue;
          entries[used].ordinal += round;
          uses.set(used, entries[used].holding, entries[used].ordinal);
        }
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
