// The card program: what the back end writes and the card executes.
//
// Little-endian, version 1. A program is one block of bytes: the header, then these tables, each
// starting where the one before it ended (all records are multiples of 8 bytes):
//
//   symbols   what a launch binds: addresses of tensors, scalar values, valid lengths
//   operands  how a step walks a tensor: byte strides per dimension, bases per core
//   steps     opcode, participating cores, extents
//   nodes     the loop tree in prefix order
//   bases     int64, byte offsets at which cores start
//   extents   int64, extents of the iteration dimensions
//   constants 32-bit words, padded to a multiple of 8 bytes
//
// **Validation** happens once, at load: after it, no address that a core can form lies outside
// the declared size of the symbol (or LX) it belongs to. A launch then only has to check that
// what is bound is at least as large as declared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats.h"
#include "opcodes.h"

namespace spyre {

inline constexpr int kCores = 32;
inline constexpr int64_t kLxBytes = 2 * 1024 * 1024;
inline constexpr int64_t kLxReserved = 64 * 1024;                // program and debug
inline constexpr int64_t kSpanBytes = 256 * 1024 * 1024 - 4096;  // 255.996 MiB
inline constexpr int kStepRank = 8;
inline constexpr int kLoopDepth = 4;

inline constexpr uint32_t kProgramMagic = 0x43505953;  // "SYPC"
inline constexpr uint16_t kProgramVersion = 1;

struct ProgramHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  uint32_t size;  // of the whole program in bytes
  uint32_t symbols, operands, steps, nodes, bases, extents, constants;  // entries per table
};
static_assert(sizeof(ProgramHeader) == 40);

enum class SymbolKind : uint8_t {
  Address = 0,  // of a tensor in device memory; `bytes` is the size the program relies on
  Scalar = 1,   // a 32-bit word in the widened domain of `format` (fp32 or int32 bits); the card
                // sees it as a one-element tensor in the launch block
  Extent = 2,   // a valid length; `bytes` is its maximum (seam for dynamic shapes)
};

struct SymbolRecord {
  uint8_t kind;
  uint8_t format;
  uint8_t is_written;  // Address: some step writes it
  uint8_t reserved[5];
  int64_t bytes;
};
static_assert(sizeof(SymbolRecord) == 16);

enum class Space : uint8_t {
  Device = 0,    // symbol: an Address
  Lx = 1,        // the core's scratchpad
  Scalar = 2,    // symbol: a Scalar
  Constant = 3,  // symbol: index into the constants
  Iota = 4,      // no memory: an int32 counted from base and strides, which count in elements
};

// How an operand fills the lanes of the sticks of one iteration.
enum class Lanes : uint8_t {
  Vector = 0,   // a stick holds its lanes; addresses are multiples of a stick
  First = 1,    // lane 0 of a stick, repeated over all lanes (sparse and one-element tensors)
  Element = 2,  // one element per iteration, any aligned address: Restickify steps only
};

struct OperandRecord {
  uint8_t space;
  uint8_t format;
  uint8_t lanes;
  uint8_t tail_tiles;  // sticks present in the last iteration of the step's stick dimension on the
                       // `tail_cores`; 0: all. Missing ones read as zeros and are not written
  uint32_t symbol;
  uint32_t base;        // first entry in the base table
  uint32_t base_count;  // 1 (all cores the same) or the number of the step's cores, in core order
  int64_t stride[kStepRank];        // bytes from one iteration to the next, per dimension
  int64_t tile_stride;              // bytes between the sticks of one iteration, where a format
                                    // has fewer elements per stick than the step's widest (among
                                    // its Vector operands in memory); for Iota: the step from
                                    // lane to lane
  int64_t loop_stride[kLoopDepth];  // bytes per iteration of the enclosing loops, outermost first
};
static_assert(sizeof(OperandRecord) == 120);

enum class StepKind : uint8_t {
  Pointwise = 0,   // sticks in, sticks out: fill, copy, convert and arithmetic
  Restickify = 1,  // one input, one output, element by element: moves the stick, realigns, and
                   // converts between formats of one domain
  // Seams: rejected by this version's validation, and by name.
  Reduction = 2,
  Matmul = 3,
  Gather = 4,
  Ring = 5,
};

inline constexpr uint8_t kNoStickDim = 0xFF;

enum StepFlags : uint32_t {
  kBarrierBefore = 1,  // reads what another core wrote in an earlier step
};

struct StepRecord {
  uint16_t opcode;
  uint8_t kind;
  uint8_t rank;  // iteration dimensions, outermost first; lanes are not among them
  uint32_t flags;
  uint32_t cores;          // bit mask
  uint32_t first_operand;  // inputs, then outputs
  uint8_t inputs;
  uint8_t outputs;
  uint8_t stick_dim;  // the dimension that counts stick tiles; 0xFF: none
  uint8_t reserved;
  uint32_t extent;        // first entry in the extent table
  uint32_t extent_count;  // 1 row of `rank` entries, or a row per participating core
  uint32_t tail_cores;    // cores whose slice of the stick dimension ends with a partial tile
};
static_assert(sizeof(StepRecord) == 32);

enum class NodeKind : uint32_t { Step = 0, Loop = 1 };

struct NodeRecord {
  uint32_t kind;
  uint32_t step;   // Step: which
  uint32_t count;  // Loop: how often
  uint32_t size;   // Loop: how many nodes belong to its body, all levels; they follow it
};
static_assert(sizeof(NodeRecord) == 16);

// Why a program was rejected. The message names the table, the entry and the reason.
class ProgramError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A validated program with the figures that launches need. Immutable, shared by launches.
struct Program {
  ProgramHeader header{};
  std::vector<SymbolRecord> symbols;
  std::vector<OperandRecord> operands;
  std::vector<StepRecord> steps;
  std::vector<NodeRecord> nodes;
  std::vector<int64_t> bases;
  std::vector<int64_t> extents;
  std::vector<uint32_t> constants;

  // Derived at load.
  int64_t nanoseconds = 0;  // modelled duration of one launch
  int64_t bytes_read = 0;   // device memory, distinct sticks per step
  int64_t bytes_written = 0;
  int64_t sfp_busy = 0, pt_busy = 0, memory_busy = 0, lx_busy = 0;  // ns
  std::array<int64_t, kCores> lx_high_water{};  // highest LX address used plus one, per core
  int64_t work = 0;              // elements touched: decides whether threads are worth waking
  std::vector<int32_t> lanes;    // per step: elements of one iteration
  std::vector<uint8_t> barrier;  // per node: Step, needs one before it; Loop, has one inside
};

// Parses and validates. Throws ProgramError; never reads outside `bytes`.
std::shared_ptr<const Program> load_program(std::span<const std::byte> bytes);

}  // namespace spyre
