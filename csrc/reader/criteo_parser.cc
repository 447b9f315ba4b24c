// The criteo parser works in two passes over a block that stays in the L2 cache.
//
// The first finds every tab and newline, 64 bytes at a time, without a branch a byte. The second
// walks lines whose number of columns is thereby known, and turns fields into numbers and keys:
// small integers by one word operation and a table of logarithms, 8-byte categories by an inlined
// XXH64. Above it: TextParser. Below it: scan_text, common/hash.h.
#include "reader/criteo_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/hash.h"
#include "reader/scan_text.h"
#include "reader/signed_log.h"

namespace hps {
namespace {

struct SeparatorMasks {
  uint64_t tabs;
  uint64_t newlines;
};

#ifdef __SSE2__
inline SeparatorMasks FindSeparators(const char* text) {
  const __m128i tab = _mm_set1_epi8('\t');
  const __m128i newline = _mm_set1_epi8('\n');
  SeparatorMasks masks{0, 0};
  for (int part = 0; part < 4; ++part) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + 16 * part));
    const auto tabs = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, tab)));
    const auto lines = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, newline)));
    masks.tabs |= uint64_t{tabs} << (16 * part);
    masks.newlines |= uint64_t{lines} << (16 * part);
  }
  return masks;
}
#else
inline SeparatorMasks FindSeparators(const char* text) {
  SeparatorMasks masks{0, 0};
  for (int i = 0; i < 64; ++i) {
    masks.tabs |= uint64_t{text[i] == '\t'} << i;
    masks.newlines |= uint64_t{text[i] == '\n'} << i;
  }
  return masks;
}
#endif

// Fills block->separators with the place of every tab, newlines with that of every line's end, and
// newline_tabs with the number of tabs before it.
void IndexSeparators(const char* data, size_t size, ExampleBlock* block) {
  // Room for a store of eight places past the last tab.
  if (block->separators.size() < size + 64) block->separators.resize(size + 64);
  block->newlines.clear();
  block->newline_tabs.clear();
  uint32_t* places = block->separators.data();
  size_t num_tabs = 0;
  for (size_t first = 0; first < size; first += 64) {
    char tail[64];
    const char* text = data + first;
    if (size - first < 64) {
      std::memset(tail, ' ', sizeof(tail));
      std::memcpy(tail, text, size - first);
      text = tail;
    }
    SeparatorMasks masks = FindSeparators(text);
    const uint64_t tabs = masks.tabs;
    for (; masks.newlines != 0; masks.newlines &= masks.newlines - 1) {
      const int bit = std::countr_zero(masks.newlines);
      block->newlines.push_back(static_cast<uint32_t>(first + bit));
      block->newline_tabs.push_back(
          static_cast<uint32_t>(num_tabs + std::popcount(tabs & ((uint64_t{1} << bit) - 1))));
    }
    uint64_t left = tabs;
    const int count = std::popcount(tabs);
    for (int done = 0; done < count; done += 8) {
      for (int i = 0; i < 8; ++i) {
        places[num_tabs + done + i] = static_cast<uint32_t>(first + std::countr_zero(left));
        left &= left - 1;
      }
    }
    num_tabs += count;
  }
  if (size > 0 && data[size - 1] != '\n') {
    block->newlines.push_back(static_cast<uint32_t>(size));
    block->newline_tabs.push_back(static_cast<uint32_t>(num_tabs));
  }
}

constexpr uint32_t kNumLogs = 1 << 15;

const float* LogTable() {
  static const auto table = [] {
    std::array<float, kNumLogs> logs;
    for (uint32_t i = 0; i < kNumLogs; ++i) logs[i] = SignedLog(double(i));
    return logs;
  }();
  return table.data();
}

// What an example's numbers are turned into, beside log1p(x) of those that are 0 or above.
struct DenseRule {
  explicit DenseRule(const TextSchema& schema)
      : logs(LogTable()),
        is_signed(schema.signed_log),
        missing(schema.signed_log ? kMissingDense : 0.0F) {}

  const float* logs;
  bool is_signed;  // -log1p(-x) of a number below 0, else 0
  float missing;
};

// The dense transform of a field that is empty or a whole number of 64 bits.
bool ScanDenseSlowly(std::string_view field, const DenseRule& rule, float* value) {
  *value = rule.missing;
  if (field.empty()) return true;
  int64_t number = 0;
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, number);
  if (error != std::errc() || stop != end) return false;
  const auto log = SignedLog(std::abs(static_cast<double>(number)));
  const float below = rule.is_signed ? -log : 0.0F;
  *value = number < 0 ? below : log;
  return true;
}

inline bool ScanDense(const char* text, size_t size, const char* limit, const DenseRule& rule,
                      float* value) {
  if (size <= 8 && limit - text >= 8) [[likely]] {
    uint64_t word;
    std::memcpy(&word, text, sizeof(word));
    // The digits move to the end and zeros come before them, so that an empty field reads as 0. Two
    // shifts each, since one by 64 is undefined.
    const size_t half = 4 * size;
    word = (word << (32 - half)) << (32 - half);
    word |= (0x3030303030303030ULL >> half) >> half;
    if (IsEightDigits(word)) [[likely]] {
      const uint32_t number = EightDigits(word);
      const float log = number < kNumLogs ? rule.logs[number] : SignedLog(double(number));
      *value = size == 0 ? rule.missing : log;  // a select: which fields are empty is chance
      return true;
    }
  }
  return ScanDenseSlowly(std::string_view(text, size), rule, value);
}

inline uint64_t HashCategory(const char* text, size_t size, uint64_t seed) {
  if (size != 8) return Xxh64(text, size, seed);
  using namespace xxh64;
  uint64_t word;
  std::memcpy(&word, text, sizeof(word));
  uint64_t hash = seed + kPrime5 + 8;
  hash = RotateLeft(hash ^ Round(0, word), 27) * kPrime1 + kPrime4;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

// A line of the right number of columns. `tabs` are its tabs' places, `end` where its text ends.
class LineParser {
 public:
  LineParser(const TextSchema& schema, const char* data, size_t size, ExampleBlock* block)
      : schema_(schema), data_(data), limit_(data + size), block_(block), rule_(schema) {
    for (const TextColumn& column : schema.columns) {
      missing_.push_back(Xxh64(nullptr, 0, column.seed));
    }
  }

  // Writes example number `example`; false with a reason if the line is bad.
  bool Parse(const uint32_t* tabs, size_t begin, size_t end, size_t example, std::string* reason) {
    const std::string_view label(data_ + begin, FieldEnd(tabs, end, 0) - begin);
    if (!ScanLabel(label, &block_->labels[example])) {
      *reason = "label " + Quote(label) + " is not 0 or 1";
      return false;
    }
    const uint32_t num_dense = schema_.num_dense;
    float* dense = block_->dense.data() + example * num_dense;
    for (uint32_t i = 0; i < num_dense; ++i) {
      const size_t first = tabs[i] + 1;
      const size_t size = FieldEnd(tabs, end, i + 1) - first;
      if (!ScanDense(data_ + first, size, limit_, rule_, &dense[i])) [[unlikely]] {
        *reason = "column I" + std::to_string(i + 1) + " holds " +
                  Quote(std::string_view(data_ + first, size)) + ", not a whole number of 64 bits";
        return false;
      }
    }
    uint64_t* keys = block_->keys.data() + example;
    const size_t num_columns = schema_.columns.size();
    for (size_t i = 0; i < num_columns; ++i) {
      const TextColumn& column = schema_.columns[i];
      const uint32_t field = num_dense + column.index;
      const size_t first = tabs[field] + 1;
      const size_t size = FieldEnd(tabs, end, field + 1) - first;
      keys[i * block_->capacity] =
          size == 0 ? missing_[i] : HashCategory(data_ + first, size, column.seed);
    }
    return true;
  }

 private:
  size_t FieldEnd(const uint32_t* tabs, size_t end, uint32_t field) const {
    return field == schema_.num_dense + schema_.num_categories ? end : tabs[field];
  }

  const TextSchema& schema_;
  const char* data_;
  const char* limit_;
  ExampleBlock* block_;
  DenseRule rule_;
  std::vector<uint64_t> missing_;  // the key of an empty category, by column
};

}  // namespace

void ParseCriteo(const TextSchema& schema, const char* data, size_t size, ExampleBlock* block) {
  block->Clear();
  IndexSeparators(data, size, block);
  const size_t num_lines = block->newlines.size();
  block->capacity = num_lines;
  block->labels.resize(num_lines);
  block->dense.resize(num_lines * schema.num_dense);
  block->keys.resize(num_lines * schema.columns.size());
  block->num_bytes = size;
  block->num_lines = num_lines;
  const uint32_t expected_tabs = schema.num_dense + schema.num_categories;
  LineParser parser(schema, data, size, block);
  std::string reason;
  size_t begin = 0;
  size_t first_tab = 0;
  for (size_t line = 0; line < num_lines; ++line) {
    const size_t newline = block->newlines[line];
    const size_t end = newline > begin && data[newline - 1] == '\r' ? newline - 1 : newline;
    const size_t num_tabs = block->newline_tabs[line] - first_tab;
    const uint32_t* tabs = block->separators.data() + first_tab;
    const size_t line_begin = begin;
    first_tab = block->newline_tabs[line];
    begin = newline + 1;
    if (end == line_begin) continue;  // blank
    bool good = false;
    if (num_tabs == expected_tabs) [[likely]] {
      good = parser.Parse(tabs, line_begin, end, block->num_examples, &reason);
    } else {
      reason = "found " + std::to_string(num_tabs + 1) + " columns separated by tabs; expected " +
               std::to_string(expected_tabs + 1) + ": label, " + std::to_string(schema.num_dense) +
               " numbers, " + std::to_string(schema.num_categories) + " categories";
    }
    if (good) [[likely]] {
      block->EndLine(std::min(begin, size), line + 1);
    } else if (!block->BadLine(line + 1, schema.skip_bad_lines, std::move(reason))) {
      break;
    }
  }
}

}  // namespace hps
