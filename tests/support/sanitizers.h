// Whether this build runs under AddressSanitizer or ThreadSanitizer. It is then some fifty times
// slower, its allocators map more memory over time, its mlock does nothing and reports success, and
// it needs file descriptors itself.
#pragma once

namespace artesian::test_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace artesian::test_support
