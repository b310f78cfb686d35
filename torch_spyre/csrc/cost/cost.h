// The card's clock: how long a step takes, from its description. Pure functions.
//
// Step time = max(PT, SFP, LPDDR5, LX) + ring, in whole nanoseconds (rounded up). The card calls
// this when a program is loaded; the compiler calls the same code through `_C._cost`.
#pragma once

#include <cstdint>

namespace spyre::cost {

// The limits of a roofline, per nanosecond. Published: fitted to measurements on hardware, fp16.
inline constexpr double kMacRate = 1140;    // multiply-adds of a core
inline constexpr double kMemoryRate = 150;  // bytes of LPDDR5, one way, shared by all cores

// Which published law prices the step's LPDDR5 traffic.
enum class Traffic : uint8_t {
  Fused = 0,       // any fused kernel, and everything not named below
  Restickify = 1,  // standalone, through LPDDR5
  CrossRowReduction = 2,
  RowReduction = 3,
  BroadcastPointwise = 4,
  Matmul = 5,  // operands broadcast to many cores
};

struct Step {
  Traffic traffic = Traffic::Fused;
  int cores = 1;
  int64_t bytes_read = 0;  // LPDDR5, all cores together, broadcast operands once
  int64_t bytes_written = 0;
  int64_t sfp_elements = 0;             // of the busiest core
  int64_t lx_read = 0, lx_written = 0;  // bytes, of the busiest core

  // RowReduction
  int64_t rows = 0;

  // Matmul, per core: m x n x k; `bits` of the operands sets the MAC rate
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int bits = 16;
  int64_t a_bytes = 0, b_bytes = 0;      // part of bytes_read
  int a_broadcast = 1, b_broadcast = 1;  // cores that share each operand

  // Ring
  int k_split = 1;
  int64_t output_elements = 0;  // of one K-split group
  // Our reading of the law: its bytes are what leaves the scratchpads of the owners
  // (`relayed_bytes`), its split is how many owners the slice of a core is collected from.
  int64_t relayout_bytes = 0;
  int relayout_split = 1;

  // Coarse tiles of non-matmul steps (0: not tiled). One tile is one visit of a step in a loop. Our
  // reading of the law: of what the busiest core takes of it, the columns are the elements along
  // the stick dimension and the rows are its iterations along all others. The law was fitted where
  // cores take whole rows; where sticks are divided too, a core's columns are those of its own
  // slice.
  int64_t tile_rows_per_core = 0;
  int64_t tile_columns = 0;
};

// Each unit's share, in nanoseconds as computed (not rounded).
struct Breakdown {
  double pt = 0, sfp = 0, memory = 0, lx = 0, ring = 0;
};

Breakdown breakdown(const Step& step);
int64_t nanoseconds(const Step& step);

// What goes round the ring, all cores together: relaid bytes, and the fp32 partial sums of every
// group of cores that share an output.
int64_t ring_bytes(const Step& step);

// What a part of a tensor counts that one core sends to others (ours). They take it as it passes,
// up to eight of them free of charge, as with the operands of a matmul.
int64_t relayed_bytes(int64_t bytes, int takers);

// What a nanosecond can hold at most: multiply-adds of 16 bits on one core, bytes one way.
struct Limits {
  double macs, memory_bytes, pcie_bytes;
};
Limits limits();

// One DMA transfer over the host link.
int64_t dma_nanoseconds(int64_t bytes);

}  // namespace spyre::cost
