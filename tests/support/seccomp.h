// Makes the kernel refuse system calls, in the calling thread and in those it starts. For child
// processes, as a filter cannot be removed.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace artesian::test_support {

/// Refuses every call of number `call` whose argument `argument` has one of the bits of `mask`;
/// with a mask of 0, every call. Returns whether the kernel took the filter.
/// `every_thread`: for all threads of this process, running ones included.
inline bool refuse_call(long call, int system_error, std::size_t argument = 0,
                        std::uint32_t mask = 0, bool every_thread = false) {
  const auto number = static_cast<std::uint32_t>(call);
  const auto low_half = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
  const auto refusal =
      SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(system_error) & SECCOMP_RET_DATA);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_half),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask == 0 ? ~std::uint32_t{0} : mask, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, refusal),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  if (mask == 0) filter[3] = BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
  const sock_fprog program{.len = 6, .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  const unsigned flags = every_thread ? SECCOMP_FILTER_FLAG_TSYNC : 0;
  return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
}

}  // namespace artesian::test_support
