// Whether this build runs under AddressSanitizer or ThreadSanitizer: it is some fifty times slower,
// its allocators map more as they go, its mlock does nothing and says that it did, and it needs
// file descriptors itself.
#pragma once

namespace artesian::test_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace artesian::test_support
