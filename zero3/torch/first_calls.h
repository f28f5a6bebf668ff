// Makes the first call of each of LibTorch's vector functions in a process on one thread.
#pragma once

namespace artesian::zero3 {

/// oneMKL chooses the kernel of a vector function (exp, log, ...) in its first call. Up to oneMKL
/// 2024.2, which LibTorch 2.11 contains, threads that make this first call simultaneously may get a
/// less accurate kernel for that call (pytorch issue 188792): in one run of a hundred the first
/// step then has other bits. So these calls are made here, once per process, before several threads
/// compute. Exceptions of LibTorch pass through.
void make_first_calls();

}  // namespace artesian::zero3
