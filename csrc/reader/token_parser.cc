// Lines of tokens. One tokenizer serves the three formats; what differs is how a token splits.
//
// A line goes to a sink token by token: the block's sink turns features into columns and keeps
// keys, the collecting sink keeps names. A bad line is taken back as a whole. Above it: TextParser.
// Below it: FeatureIndex, scan_text, common/hash.h.
#include "reader/token_parser.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/hash.h"
#include "reader/scan_text.h"

namespace hps {
namespace {

// The parts of a token. `key` is its raw text, `number` its value, which is not read where keys are
// hashed and no range of indices asks for it.
struct Token {
  std::string_view feature;
  std::string_view key;
  uint64_t number = 0;
  float weight = 1;
};

class BlockSink {
 public:
  BlockSink(const TextSchema& schema, const FeatureIndex& features, ExampleBlock* block)
      : schema_(schema), features_(features), block_(block) {
    if (schema.names_dense()) lines_of_dense_.resize(schema.num_dense, 0);
  }

  void BeginLine() {
    first_key_ = block_->keys.size();
    first_dense_ = block_->dense.size();
    if (!schema_.names_dense()) return;
    block_->dense.resize(first_dense_ + schema_.num_dense, 0.0F);
    ++line_;
  }

  void SetLabel(float label) { label_ = label; }
  void AddDense(float value) { block_->dense.push_back(value); }

  bool AddKey(const Token& token, std::string* reason) {
    uint32_t column = 0;
    if (schema_.index_ranges.empty()) {
      column = features_.Find(token.feature);
    } else {
      const IndexRange* range = FindRange(token.number);
      if (range == nullptr) {
        *reason = "index " + std::to_string(token.number) + " is in no range of the fields";
        return false;
      }
      if (range->target == kPassedOver) return true;
      column = range->target;
      if (column >= schema_.columns.size()) {
        column += static_cast<uint32_t>(token.number - range->first);
      }
    }
    if (column >= schema_.columns.size() && column != FeatureIndex::kNone) {
      return SetDense(column - static_cast<uint32_t>(schema_.columns.size()), token, reason);
    }
    if (column == FeatureIndex::kNone) {
      if (!schema_.refuse_unknown) return true;
      *reason = "feature " + Quote(token.feature) +
                " is not among the features that the log had when " + "they were listed";
      return false;
    }
    block_->keys.push_back(
        schema_.hash_keys ? Xxh64(token.key.data(), token.key.size(), schema_.columns[column].seed)
                          : token.number);
    block_->columns.push_back(column);
    if (schema_.weighted()) block_->weights.push_back(token.weight);
    return true;
  }

  void EndLine(bool good) {
    if (good) {
      block_->labels.push_back(label_);
      block_->key_ends.push_back(block_->keys.size());
      return;
    }
    block_->keys.resize(first_key_);
    block_->columns.resize(first_key_);
    if (schema_.weighted()) block_->weights.resize(first_key_);
    block_->dense.resize(first_dense_);
  }

 private:
  // The range that an index is in, or nullptr. Indices of a line mostly ascend: the range of the
  // one before, then the next, are looked at first.
  const IndexRange* FindRange(uint64_t index) {
    const std::vector<IndexRange>& ranges = schema_.index_ranges;
    for (size_t i = last_range_; i < std::min(last_range_ + 2, ranges.size()); ++i) {
      if (ranges[i].first <= index && index <= ranges[i].last) {
        last_range_ = i;
        return &ranges[i];
      }
    }
    const auto found = std::lower_bound(
        ranges.begin(), ranges.end(), index,
        [](const IndexRange& range, uint64_t value) { return range.last < value; });
    if (found == ranges.end() || index < found->first) return nullptr;
    last_range_ = static_cast<size_t>(found - ranges.begin());
    return &*found;
  }

  // Takes the value of a token that names a dense value, which a line may do once.
  bool SetDense(uint32_t place, const Token& token, std::string* reason) {
    if (lines_of_dense_[place] == line_) {
      *reason = schema_.format == TextFormat::kLibffm
                    ? "field " + Quote(token.feature) + " is there twice; "
                    : "index " + std::to_string(token.number) + " is there twice; ";
      *reason += "it is dense, one number an example";
      return false;
    }
    lines_of_dense_[place] = line_;
    block_->dense[first_dense_ + place] = token.weight;
    return true;
  }

  const TextSchema& schema_;
  const FeatureIndex& features_;
  ExampleBlock* block_;
  std::vector<uint64_t> lines_of_dense_;  // the last line, by count, that names each dense value
  uint64_t line_ = 0;
  size_t last_range_ = 0;
  float label_ = 0;
  size_t first_key_ = 0;
  size_t first_dense_ = 0;
};

class NameSink {
 public:
  explicit NameSink(std::set<std::string, std::less<>>* names) : names_(names) {}

  void BeginLine() { line_names_.clear(); }
  void SetLabel(float) {}
  void AddDense(float) {}
  bool AddKey(const Token& token, std::string*) {
    line_names_.push_back(token.feature);
    return true;
  }
  void EndLine(bool good) {
    if (!good) return;
    for (const std::string_view name : line_names_) {
      if (names_->find(name) == names_->end()) names_->emplace(name);
    }
  }

 private:
  std::set<std::string, std::less<>>* names_;
  std::vector<std::string_view> line_names_;
};

bool CheckKey(const TextSchema& schema, Token* token, std::string* reason) {
  if (schema.hash_keys && schema.index_ranges.empty()) {
    if (!token->key.empty()) return true;
    *reason = "a key is empty";
    return false;
  }
  const char* end = token->key.data() + token->key.size();
  if (ScanUnsigned(token->key.data(), end, &token->number) == end) return true;
  *reason = "key " + Quote(token->key) + " is not a whole number from 0 to 2^64 - 1";
  return false;
}

bool CheckWeight(std::string_view text, Token* token, std::string* reason) {
  if (ScanFloat(text, &token->weight)) return true;
  *reason = "value " + Quote(text) + " is not a finite number";
  return false;
}

// index:value
bool SplitLibsvm(const TextSchema& schema, std::string_view text, Token* token,
                 std::string* reason) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    *reason = "token " + Quote(text) + " is not index:value";
    return false;
  }
  token->feature = "index";
  token->key = text.substr(0, colon);
  return CheckKey(schema, token, reason) && CheckWeight(text.substr(colon + 1), token, reason);
}

// field:index:value
bool SplitLibffm(const TextSchema& schema, std::string_view text, Token* token,
                 std::string* reason) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == last || first == 0) {
    *reason = "token " + Quote(text) + " is not field:index:value";
    return false;
  }
  token->feature = text.substr(0, first);
  token->key = text.substr(first + 1, last - first - 1);
  return CheckKey(schema, token, reason) && CheckWeight(text.substr(last + 1), token, reason);
}

// key:slot, or slot:key on a line whose label is named
bool SplitSlot(const TextSchema& schema, bool named, std::string_view text, Token* token,
               std::string* reason) {
  const size_t colon = named ? text.find(':') : text.rfind(':');
  if (colon == std::string_view::npos || (named ? colon == 0 : colon + 1 == text.size())) {
    *reason = "token " + Quote(text) + " is not " + (named ? "slot:key" : "key:slot");
    return false;
  }
  const std::string_view front = text.substr(0, colon);
  const std::string_view back = text.substr(colon + 1);
  token->feature = named ? front : back;
  token->key = named ? back : front;
  return CheckKey(schema, token, reason);
}

constexpr std::string_view kDense = "dense_feature:";

// Whether a line of slots without a label has tokens slot:key; false if there is no telling.
bool FindLayout(const TextSchema& schema, std::string_view line, bool* named, std::string* reason) {
  *named = schema.layout == SlotLayout::kSlotKey;
  if (schema.layout != SlotLayout::kUnknown) return true;
  for (std::string_view text = NextToken(&line); !text.empty(); text = NextToken(&line)) {
    if (text.starts_with(kDense)) {
      *named = true;
      return true;
    }
  }
  *reason = "the line has no label, by which key:slot is told from slot:key (slot_layout says it)";
  return false;
}

template <typename Sink>
bool ParseSlotsLine(const TextSchema& schema, std::string_view line, Sink* sink,
                    std::string* reason) {
  const std::string_view whole = line;
  const std::string_view first = NextToken(&line);
  bool named = false;
  float label = 0;
  if (!ScanSlotLabel(first, &named, &label)) {
    if (schema.needs_labels || named || first.find(':') == std::string_view::npos) {
      *reason = "the line begins with " + Quote(first) + "; expected 0:1, 1:1, click:0 or click:1";
      return false;
    }
    if (!FindLayout(schema, whole, &named, reason)) return false;
    line = whole;
  }
  sink->SetLabel(label);
  uint32_t num_dense = 0;
  for (std::string_view text = NextToken(&line); !text.empty(); text = NextToken(&line)) {
    Token token;
    if (named && text.starts_with(kDense)) {
      if (!CheckWeight(text.substr(kDense.size()), &token, reason)) return false;
      sink->AddDense(token.weight);
      ++num_dense;
    } else if (!SplitSlot(schema, named, text, &token, reason) || !sink->AddKey(token, reason)) {
      return false;
    }
  }
  if (num_dense == schema.num_dense) return true;
  *reason = "found " + std::to_string(num_dense) + " dense values, expected " +
            std::to_string(schema.num_dense);
  return false;
}

template <typename Sink>
bool ParseWeightedLine(const TextSchema& schema, std::string_view line, Sink* sink,
                       std::string* reason) {
  const std::string_view whole = line;
  const std::string_view first = NextToken(&line);
  float label = 0;
  if (!ScanLabel(first, &label)) {
    const bool is_token = first.find(':') != std::string_view::npos && first.front() != '#';
    if (!is_token || schema.needs_labels) {
      *reason = is_token ? "the line begins with " + Quote(first) +
                               " and has no label; expected 0, 1 or -1 before it"
                         : "label " + Quote(first) + " is not 0, 1 or -1";
      return false;
    }
    label = 0;
    line = whole;
  }
  sink->SetLabel(label);
  for (std::string_view text = NextToken(&line); !text.empty(); text = NextToken(&line)) {
    if (text.front() == '#') break;  // a comment
    Token token;
    const bool good = schema.format == TextFormat::kLibsvm
                          ? SplitLibsvm(schema, text, &token, reason)
                          : SplitLibffm(schema, text, &token, reason);
    if (!good || !sink->AddKey(token, reason)) return false;
  }
  return true;
}

// Walks the lines, gives each to the sink, and keeps the block's counts and its error.
template <typename Sink>
void WalkLines(const TextSchema& schema, const char* data, size_t size, Sink* sink,
               ExampleBlock* block) {
  block->num_bytes = size;
  std::string reason;
  for (size_t begin = 0; begin < size;) {
    const void* newline = std::memchr(data + begin, '\n', size - begin);
    const size_t end = newline == nullptr ? size : static_cast<const char*>(newline) - data;
    const size_t next = newline == nullptr ? size : end + 1;
    std::string_view line(data + begin, end - begin);
    begin = next;
    ++block->num_lines;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (IsBlank(line)) continue;
    sink->BeginLine();
    const bool good = schema.format == TextFormat::kSlots
                          ? ParseSlotsLine(schema, line, sink, &reason)
                          : ParseWeightedLine(schema, line, sink, &reason);
    sink->EndLine(good);
    if (good) {
      block->EndLine(next, block->num_lines);
    } else if (!block->BadLine(block->num_lines, schema.skip_bad_lines, std::move(reason))) {
      return;
    }
  }
}

}  // namespace

void ParseTokens(const TextSchema& schema, const FeatureIndex& features, const char* data,
                 size_t size, ExampleBlock* block) {
  block->Clear();
  block->keys.clear();
  BlockSink sink(schema, features, block);
  WalkLines(schema, data, size, &sink, block);
}

void CollectFeatures(const TextSchema& schema, const char* data, size_t size,
                     std::set<std::string, std::less<>>* names, ExampleBlock* block) {
  block->Clear();
  NameSink sink(names);
  WalkLines(schema, data, size, &sink, block);
}

}  // namespace hps
