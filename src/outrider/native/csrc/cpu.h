// Instruction-set levels of the compute kernels and their detection at run time.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// Every level gives the same bits for the same input; the level only decides the speed.
enum class Isa {
  portable,    // plain C++
  neon_dot,    // ARM with the dot-product extension
  avx2,        // AVX2, FMA, F16C
  avxvnni,     // the same with the VEX-coded byte dot product
  avx512vnni,  // AVX-512 F/BW/DQ/VL with the byte dot product
};

// The best level that this build contains and this machine can run.
Isa detect_isa();

// The levels that this build contains and this machine can run, best first; never empty.
std::vector<Isa> available_isas();

const char* isa_name(Isa isa);

// The level of that name ("avx512vnni", "avxvnni", "avx2", "neon_dot", "portable"); "auto" means
// detect_isa(). Throws std::invalid_argument for unknown names and for levels not available here.
Isa isa_from_name(const std::string& name);

}  // namespace outrider
