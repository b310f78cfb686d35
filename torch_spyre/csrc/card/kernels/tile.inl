// Moving a tile whose two sides run in different directions.

// A square block as wide as a vector. Interleaving the upper half of the rows with the lower,
// log2(width) times, is a transpose.
template <typename T>
struct Block {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(16)));

  SPYRE_INLINE Vector low(Vector a, Vector b) {
    if constexpr (sizeof(T) == 1) {
      return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    } else if constexpr (sizeof(T) == 2) {
      return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    } else if constexpr (sizeof(T) == 4) {
      return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    } else {
      return __builtin_shufflevector(a, b, 0, 2);
    }
  }
  SPYRE_INLINE Vector high(Vector a, Vector b) {
    if constexpr (sizeof(T) == 1) {
      return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                     31);
    } else if constexpr (sizeof(T) == 2) {
      return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else if constexpr (sizeof(T) == 4) {
      return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    } else {
      return __builtin_shufflevector(a, b, 1, 3);
    }
  }
  SPYRE_INLINE void transpose(const std::byte* from, int64_t from_row, std::byte* to,
                              int64_t to_row) {
    Vector rows[kWidth], mixed[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) __builtin_memcpy(&rows[i], from + i * from_row, 16);
#pragma GCC unroll 4
    for (int stage = 1; stage < kWidth; stage *= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < kWidth / 2; ++i) {
        mixed[2 * i] = low(rows[i], rows[i + kWidth / 2]);
        mixed[2 * i + 1] = high(rows[i], rows[i + kWidth / 2]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = mixed[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) __builtin_memcpy(to + i * to_row, &rows[i], 16);
  }
};

// Byte strides; any of them may be zero or negative.
template <typename T>
static void move_elements(const std::byte* from, int64_t from_row, int64_t from_col, std::byte* to,
                          int64_t to_row, int64_t to_col, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    const std::byte* source = from + i * from_row;
    std::byte* target = to + i * to_row;
    for (int64_t j = 0; j < cols; ++j) {
      __builtin_memcpy(target + j * to_col, source + j * from_col, sizeof(T));
    }
  }
}

template <typename T>
static void fill_rows(const std::byte* from, int64_t from_row, std::byte* to, int64_t to_row,
                      int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    T value;
    __builtin_memcpy(&value, from + i * from_row, sizeof(T));
    auto* target = reinterpret_cast<typename Loose<T>::Type*>(to + i * to_row);
    for (int64_t j = 0; j < cols; ++j) target[j] = value;
  }
}

// From rows of contiguous columns to columns of contiguous rows.
template <typename T>
static void transpose_tile(const std::byte* from, int64_t from_row, std::byte* to, int64_t to_col,
                           int64_t rows, int64_t cols) {
  constexpr int64_t kWidth = Block<T>::kWidth;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  const int64_t whole_rows = rows - rows % kWidth;
  const int64_t whole_cols = cols - cols % kWidth;
  for (int64_t j = 0; j < whole_cols; j += kWidth) {
    for (int64_t i = 0; i < whole_rows; i += kWidth) {
      Block<T>::transpose(from + i * from_row + j * kBytes, from_row, to + i * kBytes + j * to_col,
                          to_col);
    }
  }
  move_elements<T>(from + whole_rows * from_row, from_row, kBytes, to + whole_rows * kBytes, kBytes,
                   to_col, rows - whole_rows, cols);
  move_elements<T>(from + whole_cols * kBytes, from_row, kBytes, to + whole_cols * to_col, kBytes,
                   to_col, whole_rows, cols - whole_cols);
}

template <typename T>
static void move_tile_of(const std::byte* from, int64_t from_row, int64_t from_col, std::byte* to,
                         int64_t to_row, int64_t to_col, int64_t rows, int64_t cols) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  if (from_col == kBytes && to_col == kBytes && cols >= kStickBytes / 4 / kBytes) {
    for (int64_t i = 0; i < rows; ++i) {
      __builtin_memcpy(to + i * to_row, from + i * from_row, static_cast<size_t>(cols * kBytes));
    }
  } else if (from_col == kBytes && to_row == kBytes) {
    transpose_tile<T>(from, from_row, to, to_col, rows, cols);
  } else if (from_row == kBytes && to_col == kBytes) {
    transpose_tile<T>(from, from_col, to, to_row, cols, rows);
  } else if (from_col == 0 && to_col == kBytes) {
    fill_rows<T>(from, from_row, to, to_row, rows, cols);
  } else {
    move_elements<T>(from, from_row, from_col, to, to_row, to_col, rows, cols);
  }
}

static void move_tile(int element_bytes, const std::byte* from, int64_t from_row, int64_t from_col,
                      std::byte* to, int64_t to_row, int64_t to_col, int64_t rows, int64_t cols) {
  switch (element_bytes) {
    case 1:
      return move_tile_of<uint8_t>(from, from_row, from_col, to, to_row, to_col, rows, cols);
    case 2:
      return move_tile_of<uint16_t>(from, from_row, from_col, to, to_row, to_col, rows, cols);
    case 4:
      return move_tile_of<uint32_t>(from, from_row, from_col, to, to_row, to_col, rows, cols);
    case 8:
      return move_tile_of<uint64_t>(from, from_row, from_col, to, to_row, to_col, rows, cols);
    default:
      __builtin_trap();
  }
}
