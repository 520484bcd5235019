// Which instruction sets can be used here. Queried from the processor directly: the compilers' __builtin_cpu_supports
// needs a run-time library that not every tool chain links into shared objects.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

namespace transduce {
namespace {

constexpr unsigned bit(int place) { return 1u << place; }
bool all(unsigned flags, unsigned wanted) { return (flags & wanted) == wanted; }

// The registers that the operating system saves for each thread.
unsigned kept_registers() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Instructions look() {
  Instructions found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  bool fma = all(c, bit(12)), avx = all(c, bit(27) | bit(28));  // bit 27: xgetbv may be used
  unsigned registers = avx ? kept_registers() : 0;
  bool vectors = all(registers, bit(1) | bit(2));
  bool wide = vectors && all(registers, bit(5) | bit(6) | bit(7));
  if (!vectors || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = fma && all(b, bit(5));
  // AVX512 F, DQ, BW, VL; VNNI
  found.avx512_vnni = found.avx2 && wide && all(b, bit(16) | bit(17) | bit(30) | bit(31)) && all(c, bit(11));
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx_vnni = found.avx2 && all(a, bit(4));
  return found;
}

}  // namespace

const Instructions& instructions() {
  static const Instructions found = look();
  return found;
}

}  // namespace transduce
#else
namespace transduce {
const Instructions& instructions() {
  static const Instructions none;
  return none;
}
}  // namespace transduce
#endif
