#include "zero3/step/leaf_sums.h"

#include <algorithm>

namespace artesian::zero3 {

LeafSums::LeafSums(const Layout& layout) : layout_(layout) {
  first_.push_back(0);
  for (const Unit& unit : layout.units) {
    const std::uint64_t leaves = unit.trainable ? unit.image / kernels::norm_leaf : 0;
    first_.push_back(first_.back() + static_cast<std::size_t>(leaves));
  }
  sums_.resize(first_.back());
}

Result<void> LeafSums::gather(comm::Group& group, const char* what) noexcept {
  const auto& units = layout_.units;
  std::uint64_t leaves = 0;  // leaves in one rank's shares
  for (const Unit& unit : units) leaves += unit.trainable ? unit.share / kernels::norm_leaf : 0;
  std::vector<double> all(static_cast<std::size_t>(leaves * group.ranks()));
  const auto for_each_share = [&](std::uint64_t rank, const auto& copy) {
    auto at = all.begin() + static_cast<std::ptrdiff_t>(rank * leaves);
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
      if (!units[unit].trainable) continue;
      const auto count = static_cast<std::size_t>(units[unit].share / kernels::norm_leaf);
      copy(of(unit).subspan(rank * count, count), at);
      at += static_cast<std::ptrdiff_t>(count);
    }
  };
  for_each_share(group.rank(), [](std::span<double> share, auto at) {
    std::copy(share.begin(), share.end(), at);
  });
  ARTESIAN_TRY_VOID(group.all_gather(std::as_writable_bytes(std::span(all)), {what}));
  for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
    for_each_share(rank, [](std::span<double> share, auto at) {
      std::copy_n(at, share.size(), share.begin());
    });
  }
  return {};
}

}  // namespace artesian::zero3
