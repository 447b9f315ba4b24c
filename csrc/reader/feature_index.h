// FeatureIndex: from a feature's name in the text to its column.
//
// Above it: the token parsers. Below it: nothing. Read-only once made, so threads share it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reader/text_schema.h"

namespace hps {

class FeatureIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit FeatureIndex(const std::vector<TextColumn>& columns) {
    for (uint32_t column = 0; column < columns.size(); ++column) {
      const std::string& name = columns[column].name;
      const uint32_t number = SmallNumber(name);
      if (number == kNone) {
        named_.emplace(name, column);
      } else {
        if (number >= numbered_.size()) numbered_.resize(number + 1, kNone);
        numbered_[number] = column;
      }
    }
  }

  uint32_t Find(std::string_view name) const {
    const uint32_t number = SmallNumber(name);
    if (number != kNone) return number < numbered_.size() ? numbered_[number] : kNone;
    const auto found = named_.find(name);
    return found == named_.end() ? kNone : found->second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  // The number that a name of one to five digits without leading zeros spells; kNone for others,
  // which are looked up as strings, so that "7" and "07" stay two names.
  static uint32_t SmallNumber(std::string_view name) {
    if (name.empty() || name.size() > 5 || (name[0] == '0' && name.size() > 1)) return kNone;
    uint32_t number = 0;
    for (const char letter : name) {
      const unsigned digit = static_cast<unsigned char>(letter) - unsigned{'0'};
      if (digit > 9) return kNone;
      number = number * 10 + digit;
    }
    return number;
  }

  std::vector<uint32_t> numbered_;
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> named_;
};

}  // namespace hps
