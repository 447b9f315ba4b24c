// The text parser on damaged logs: good lines with bytes changed, cut and joined at random, fed in
// pieces of exactly their size, so that `make asan` sees any byte read past them. Whatever comes,
// all text is taken, batches are whole, one thread and three give the same, and so do parts of the
// text that are parsed apart. A sample gives what a parser of its lines alone gives. Prints its
// seed. Above it: CTest. Below it: csrc/reader.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "reader/batch_lines.h"
#include "reader/scan_text.h"
#include "reader/text_parser.h"
#include "reader/token_parser.h"

namespace hps {
namespace {

constexpr uint32_t kSeed = 20240817;
constexpr int kRounds = 4000;

const char* const kLines[4] = {
    "1\t-5\t123456789\tdeadbeef\t\n0\t\t\ta longer value than eight\tdeadbeef\r\n\n1\t7\t0\tx\ty\n",
    "1 0:1 18446744073709551615:-2.5\n-1 7:0.25\t8:1e3 \r\n\n0\n+1 123456789:1 # 3:x\n",
    "1 0:3:1 1:17:0.5\n0 1:18446744073709551615:1\r\n\n0 2:5:1 0:6:2\n",
    "1:1 3:0 17:1\nclick:0 dense_feature:0.5 0:9 1:18446744073709551615\r\n\n0:1 5:1 6:2\n",
};

SampleRule MakeSample(std::mt19937* random) {
  if ((*random)() % 2 == 0) return {};
  const double low = (*random)() % 2 == 0 ? 0.0 : 0.25;
  const double high = (*random)() % 2 == 0 ? 1.0 : 0.75;
  return {low, high, (*random)() % 2 == 0 ? 1.0 : 0.5};
}

// Fields of libsvm, with gaps between them; a dense one of it, and of libffm.
void AddFields(TextSchema* schema) {
  if (!schema->weighted()) return;
  schema->num_dense = 1;
  if (schema->format == TextFormat::kLibffm) {
    schema->dense_fields = {{"2", 0, 0}};
  } else {
    schema->index_ranges = {{0, 6, 1}, {7, 7, 2}, {8, 9, kPassedOver}, {100, ~uint64_t{0}, 0}};
  }
}

TextSchema MakeSchema(TextFormat format, std::mt19937* random) {
  TextSchema schema;
  schema.format = format;
  schema.num_dense = format == TextFormat::kCriteo ? 2 : 0;
  schema.num_categories = 2;
  const bool single = format == TextFormat::kLibsvm;
  schema.columns = {{single ? "index" : "0", 1, 0}, {"1", 2, 1}};
  schema.table_sizes = {1, 1};
  schema.hash_keys = (*random)() % 2 == 0;
  schema.skip_bad_lines = (*random)() % 4 != 0;
  schema.refuse_unknown = (*random)() % 4 == 0;
  schema.sample = MakeSample(random);
  schema.needs_labels = (*random)() % 2 == 0;
  schema.layout = static_cast<SlotLayout>((*random)() % 3);
  if ((*random)() % 2 == 0) AddFields(&schema);
  return schema;
}

std::string MakeText(TextFormat format, std::mt19937* random) {
  std::string text;
  for (size_t copies = 1 + (*random)() % 4; copies > 0; --copies) {
    text += kLines[static_cast<int>(format)];
  }
  for (size_t changes = (*random)() % 4; changes > 0; --changes) {
    text[(*random)() % text.size()] = static_cast<char>((*random)() % 3 == 0 ? '\n' : (*random)());
  }
  text.resize((*random)() % 2 == 0 ? text.size() : (*random)() % text.size());
  return text;
}

bool HasError(const TextParser& parser) { return parser.error() != nullptr; }
bool HasError(const BatchLines&) { return false; }

// Feeds `text` in pieces of up to `piece` bytes, each in memory of its own size.
template <typename Taker>
void FeedPieces(const std::string& text, size_t piece, Taker* parser) {
  parser->StartFile(0, 0, 0);
  std::string waiting;
  for (size_t begin = 0; begin <= text.size() && !HasError(*parser); begin += piece) {
    waiting += text.substr(begin, piece);
    const bool at_end = begin + piece > text.size();
    const std::unique_ptr<char[]> exact(new char[waiting.size()]);
    std::memcpy(exact.get(), waiting.data(), waiting.size());
    const size_t used = parser->Feed(exact.get(), waiting.size(), at_end);
    HPS_CHECK(used <= waiting.size());
    HPS_CHECK(!at_end || used == waiting.size());
    waiting.erase(0, used);
  }
}

void CheckBatch(const TextSchema& schema, const TextBatch& batch, size_t count) {
  HPS_CHECK(batch.num_examples == count && batch.labels.size == count);
  HPS_CHECK(batch.dense.size == count * schema.num_dense);
  for (const TableIds& table : batch.tables) {
    HPS_CHECK(table.offsets.size == count + 1 && table.offsets.data[0] == 0);
    for (size_t i = 0; i < count; ++i) {
      HPS_CHECK(table.offsets.data[i] <= table.offsets.data[i + 1]);
    }
    HPS_CHECK(static_cast<size_t>(table.offsets.data[count]) == table.keys.size);
  }
}

void CheckSame(const TextSchema& schema, const TextBatch& left, const TextBatch& right) {
  HPS_CHECK(left.num_examples == right.num_examples);
  CheckBatch(schema, left, left.num_examples);
  CheckBatch(schema, right, left.num_examples);
  for (size_t t = 0; t < left.tables.size(); ++t) {
    HPS_CHECK(left.tables[t].keys.size == right.tables[t].keys.size);
    for (size_t i = 0; i < left.tables[t].keys.size; ++i) {
      HPS_CHECK(left.tables[t].keys.data[i] == right.tables[t].keys.data[i]);
    }
  }
}

// Everything that is ready, as one batch of each parser; they must agree.
size_t CompareParsers(const TextSchema& schema, TextParser* one, TextParser* other) {
  const size_t count = one->num_ready();
  HPS_CHECK(count == other->num_ready() && one->num_bad() == other->num_bad());
  HPS_CHECK((one->error() == nullptr) == (other->error() == nullptr));
  if (one->error() != nullptr) HPS_CHECK(one->error()->line == other->error()->line);
  if (count == 0) return 0;
  const TextBatch left = one->Take(count, 0, count);
  const TextBatch right = other->Take(count, 0, count);
  HPS_CHECK(left.num_examples == count);
  CheckSame(schema, left, right);
  HPS_CHECK(left.byte == right.byte && left.line == right.line);
  return count;
}

// The text in parts, each parsed apart: the examples that the whole has there, or its bad line.
size_t CompareParts(TextSchema schema, const std::string& text, size_t num_parts, size_t piece) {
  schema.skip_bad_lines = false;
  uint64_t bad_line = 0;  // the first that a part has found
  size_t num_same = 0;
  TextParser whole(schema, 1);
  FeedPieces(text, text.size() + 1, &whole);
  for (size_t part = 0; part < num_parts; ++part) {
    BatchLines lines(schema.format, schema.sample);
    FeedPieces(text, piece, &lines);
    const size_t count = lines.num_ready();
    HPS_CHECK(count >= whole.num_ready());
    if (count == 0) return 0;
    const size_t first = count * part / num_parts;
    const size_t last = count * (part + 1) / num_parts;
    TextSchema takes_all = schema;
    takes_all.sample = {};
    TextParser own(takes_all, 1 + part % 2);
    const LogPlace place = lines.Take(count, first, last, &own);
    if (own.error() != nullptr) {
      if (bad_line == 0) bad_line = own.error()->line;
      continue;
    }
    if (whole.error() != nullptr) continue;
    TextParser again(schema, 3);
    FeedPieces(text, text.size() + 1, &again);
    const TextBatch expected = again.Take(count, first, last);
    CheckSame(schema, expected, own.Take(last - first, 0, last - first));
    HPS_CHECK(place.byte == expected.byte && place.line == expected.line);
    num_same += expected.num_examples;
  }
  HPS_CHECK(bad_line == (whole.error() == nullptr ? 0 : whole.error()->line));
  return num_same;
}

// A readable twin of the choice of a line, which lacks its newline.
bool IsKept(const TextSchema& schema, std::string line) {
  if (line.ends_with('\r')) line.pop_back();
  const bool is_criteo = schema.format == TextFormat::kCriteo;
  const char* blanks = is_criteo ? "\t" : " \t";
  if (line.find_first_not_of(is_criteo ? "" : blanks) == std::string::npos) return false;
  const size_t first = is_criteo ? 0 : line.find_first_not_of(blanks);
  const size_t end = std::min(line.find_first_of(blanks, first), line.size());
  std::string label = line.substr(first, end - first);
  bool has_label = is_criteo || label.find(':') == std::string::npos;
  if (schema.format == TextFormat::kSlots) {
    const size_t colon = label.find(':');
    const std::string front = label.substr(0, colon);
    const std::string back = colon == std::string::npos ? "" : label.substr(colon + 1);
    const bool is_named = (front == "click" || front == "label") && colon != std::string::npos;
    label = is_named ? back : back == "1" && colon != std::string::npos ? front : "";
    float ignored = 0;
    has_label = is_named || ScanLabel(label, &ignored);
  }
  const size_t after = is_criteo ? end + 1 : line.find_first_not_of(blanks, end);
  const size_t content = has_label ? after : first;
  const std::string rest = content < line.size() ? line.substr(content) : "";
  float value = 1;
  const bool is_negative = has_label && ScanLabel(label, &value) && value == 0;
  return schema.sample.Keeps(Xxh64(rest.data(), rest.size(), 0), is_negative);
}

// A sample of the text beside all of a text that has the sample's lines alone.
size_t CompareSample(TextSchema schema, const std::string& text, size_t piece) {
  TextParser sampled(schema, 1);
  FeedPieces(text, piece, &sampled);
  std::string kept;
  std::vector<uint64_t> line_numbers;
  uint64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++line;
    if (IsKept(schema, text.substr(begin, end - begin))) {
      kept += text.substr(begin, end + 1 - begin);
      line_numbers.push_back(line);
    }
    begin = end + 1;
  }
  schema.sample = {};
  TextParser plain(schema, 1);
  FeedPieces(kept, kept.size() + 1, &plain);
  const size_t count = plain.num_ready();
  HPS_CHECK(sampled.num_ready() == count && sampled.num_bad() == plain.num_bad());
  HPS_CHECK((sampled.error() == nullptr) == (plain.error() == nullptr));
  if (plain.error() != nullptr) {
    HPS_CHECK(sampled.error()->line == line_numbers[plain.error()->line - 1]);
  }
  if (count == 0) return 0;
  const TextBatch left = sampled.Take(count, 0, count);
  const TextBatch right = plain.Take(count, 0, count);
  CheckSame(schema, left, right);
  HPS_CHECK(left.line == line_numbers[right.line - 1]);
  HPS_CHECK(left.byte == text.size() || text[left.byte - 1] == '\n');
  return count;
}

// Long enough for many blocks, so that the threads have work at the same time.
void RunLarge(TextFormat format, std::mt19937* random) {
  TextSchema schema = MakeSchema(format, random);
  schema.skip_bad_lines = true;
  schema.sample = {0.25, 1, 0.5};
  std::string text;
  while (text.size() < 1000000) text += kLines[static_cast<int>(format)];
  TextParser one(schema, 1);
  TextParser other(schema, 3);
  FeedPieces(text, 300000, &one);
  FeedPieces(text, text.size() + 1, &other);
  HPS_CHECK(CompareParsers(schema, &one, &other) > 10000);
}

void Run() {
  std::mt19937 random(kSeed);
  std::printf("seed %u\n", kSeed);
  size_t num_good = 0;
  size_t num_bad = 0;
  size_t num_in_parts = 0;
  size_t num_sampled = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto format = static_cast<TextFormat>(round % 4);
    const TextSchema schema = MakeSchema(format, &random);
    const std::string text = MakeText(format, &random);
    TextParser one(schema, 1);
    TextParser other(schema, 3);
    FeedPieces(text, 1 + random() % 64, &one);
    FeedPieces(text, text.size() + 1, &other);
    num_bad += one.num_bad() + (one.error() == nullptr ? 0 : 1);
    num_good += CompareParsers(schema, &one, &other);
    num_in_parts += CompareParts(schema, text, 1 + random() % 5, 1 + random() % 64);
    num_sampled += CompareSample(schema, text, 1 + random() % 64);
    if (!schema.fixed()) {
      std::set<std::string, std::less<>> names;
      ExampleBlock block;
      CollectFeatures(schema, text.data(), text.size(), &names, &block);
      HPS_CHECK(block.num_bad + block.error_line <= block.num_lines);
    }
  }
  for (int format = 0; format < 4; ++format) RunLarge(static_cast<TextFormat>(format), &random);
  std::printf("%zu good lines, %zu bad ones, %zu in parts\n", num_good, num_bad, num_in_parts);
  std::printf("%zu of them by a sample or none\n", num_sampled);
  HPS_CHECK(num_good > kRounds && num_bad > kRounds / 2 && num_in_parts > kRounds);
  HPS_CHECK(num_sampled > kRounds);
}

}  // namespace
}  // namespace hps

int main() { hps::Run(); }
