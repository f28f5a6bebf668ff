// The first call of each of LibTorch's vector functions in a process, made by one thread.
#pragma once

namespace artesian::zero3 {

/// oneMKL chooses the kernel of a vector function (exp, log, ...) in its first call. Up to oneMKL
/// 2024.2, which LibTorch 2.11 has, threads that make that call at once may for this once get a
/// less accurate kernel (pytorch issue 188792): then the first step of a run in a hundred has other
/// bits. So these calls are made here, once in a process, before a team computes anything. What
/// LibTorch throws passes through.
void make_first_calls();

}  // namespace artesian::zero3
