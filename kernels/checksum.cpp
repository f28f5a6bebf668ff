// A thin layer over libxxhash; only this file includes its headers.
#include "kernels/checksum.h"

#include <xxhash.h>
#ifdef ARTESIAN_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // selects AVX2 or AVX-512 at run time; renames functions used below
#endif

#include <array>

#include "base/check.h"

namespace artesian::kernels {
namespace {

// Note [Dirty upper halves] libxxhash's AVX code returns without vzeroupper (seen in Debian's
// 0.8.1). Until vzeroupper is executed, every SSE instruction of the thread is slowed by merging
// with the upper halves of the registers: plain code ran 9 times slower after one checksum.
#ifdef ARTESIAN_XXHASH_DISPATCH
__attribute__((target("avx"))) void zero_upper_halves() noexcept {
  __builtin_ia32_vzeroupper();
}
const bool has_avx = __builtin_cpu_supports("avx") != 0;
void clean_registers() noexcept {
  if (has_avx) zero_upper_halves();
}
#else
void clean_registers() noexcept {}
#endif

}  // namespace

std::uint64_t checksum64(const void* data, std::uint64_t size, std::uint64_t seed) noexcept {
  const std::uint64_t checksum = XXH3_64bits_withSeed(data, size, seed);
  clean_registers();
  return checksum;
}

void Digest::Free::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}

Digest::Digest() : state_(XXH3_createState()) {
  ARTESIAN_CHECK(state_ != nullptr);  // it has 576 bytes
  ARTESIAN_CHECK(XXH3_128bits_reset(state_.get()) == XXH_OK);
}

void Digest::update(const void* data, std::uint64_t size) noexcept {
  if (size == 0) return;
  ARTESIAN_CHECK(data != nullptr);
  ARTESIAN_CHECK(XXH3_128bits_update(state_.get(), data, size) == XXH_OK);
  clean_registers();
}

void Digest::start_named(std::string_view name, std::uint64_t size) noexcept {
  const auto update_length = [this](std::uint64_t length) {
    std::array<unsigned char, 8> bytes;
    for (auto& byte : bytes) {
      byte = static_cast<unsigned char>(length & 0xffu);
      length >>= 8;
    }
    update(bytes.data(), bytes.size());
  };
  update_length(name.size());
  update(name.data(), name.size());
  update_length(size);
}

std::string Digest::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  clean_registers();
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 0xf];
  }
  return text;
}

}  // namespace artesian::kernels
