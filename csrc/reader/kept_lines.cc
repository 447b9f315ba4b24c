// The choice of lines by their bytes. Above it: TextParser, BatchLines. Below it: SampleRule,
// scan_text, common/hash.h.
#include "reader/kept_lines.h"

#include <cstring>
#include <string_view>

#include "common/check.h"
#include "common/hash.h"
#include "reader/scan_text.h"

namespace hps {
namespace {

// True for a line that the parsers pass over; `line` is without its newline.
inline bool IsPassedOver(TextFormat format, std::string_view line) {
  if (!line.empty() && static_cast<unsigned char>(line.front()) > ' ') return false;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return format == TextFormat::kCriteo ? line.empty() : IsBlank(line);
}

// A line's label as it is written, and its content: what follows, without what divides the two.
struct LineParts {
  std::string_view label;
  std::string_view content;
};

inline LineParts SplitLine(TextFormat format, std::string_view line) {
  if (format == TextFormat::kCriteo) {
    const bool is_short = line.size() > 1 && line[1] == '\t' && line[0] != '\t';
    const size_t tab = is_short ? 1 : line.find('\t');
    if (tab == std::string_view::npos) return {line, {}};
    return {line.substr(0, tab), line.substr(tab + 1)};
  }
  const std::string_view whole = line;
  const std::string_view label = NextToken(&line);
  float value = 0;
  bool named = false;
  const bool has_label = format == TextFormat::kSlots
                             ? ScanSlotLabel(label, &named, &value) || named
                             : label.find(':') == std::string_view::npos;
  if (!has_label) return {{}, whole.substr(static_cast<size_t>(label.data() - whole.data()))};
  while (!line.empty() && IsSpace(line.front())) line.remove_prefix(1);
  return {label, line};
}

inline bool IsNegative(TextFormat format, std::string_view text) {
  float label = 0;
  bool named = false;
  const bool is_label =
      format == TextFormat::kSlots ? ScanSlotLabel(text, &named, &label) : ScanLabel(text, &label);
  return is_label && label == 0;
}

// Of a line that is not blank, without its newline.
inline bool KeepsLine(TextFormat format, const SampleRule& rule, std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const LineParts parts = SplitLine(format, line);
  const bool is_negative = rule.has_rate() && IsNegative(format, parts.label);
  if (!is_negative && !rule.has_range()) return true;
  return rule.Keeps(Xxh64(parts.content.data(), parts.content.size(), 0), is_negative);
}

}  // namespace

void KeepLines(TextFormat format, const SampleRule& rule, const char* data, size_t size,
               KeptLines* kept) {
  HPS_CHECK(size < (uint64_t{1} << 32));
  kept->text.clear();
  kept->ends.clear();
  const bool keeps_all = rule.keeps_all();
  size_t run = 0;        // where the lines begin that are kept and not copied yet
  size_t run_end = 0;    // and where they end
  size_t text_size = 0;  // with these
  uint32_t num_lines = 0;
  for (size_t begin = 0; begin < size;) {
    const void* newline = std::memchr(data + begin, '\n', size - begin);
    const size_t end = newline == nullptr ? size : static_cast<const char*>(newline) - data;
    const size_t next = newline == nullptr ? size : end + 1;
    ++num_lines;
    const std::string_view line(data + begin, end - begin);
    if (!IsPassedOver(format, line) && (keeps_all || KeepsLine(format, rule, line))) {
      if (begin != run_end) {
        kept->text.insert(kept->text.end(), data + run, data + run_end);
        run = begin;
      }
      run_end = next;
      text_size += next - begin;
      kept->ends.push_back(
          {static_cast<uint32_t>(text_size), static_cast<uint32_t>(next), num_lines});
    }
    begin = next;
  }
  kept->text.insert(kept->text.end(), data + run, data + run_end);
  kept->num_lines = num_lines;
}

}  // namespace hps
