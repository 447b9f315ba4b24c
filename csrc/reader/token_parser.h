// The formats whose lines are a label and tokens joined by colons: libsvm, libffm and slots.
//
// Above it: TextParser. Below it: FeatureIndex, scan_text, common/hash.h.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "reader/example_block.h"
#include "reader/feature_index.h"
#include "reader/text_schema.h"

namespace hps {

// Parses `size` bytes of whole lines (the last may lack its newline) into `block`, which is cleared
// first. Stops at the first bad line unless the schema skips them. Thread-safe: schema and features
// are only read. size < 2^32.
void ParseTokens(const TextSchema& schema, const FeatureIndex& features, const char* data,
                 size_t size, ExampleBlock* block);

// Adds the name of every feature that occurs in a good line to `names`; keys and dense values are
// checked as ParseTokens checks them. `block` takes only the counts of lines and the error.
void CollectFeatures(const TextSchema& schema, const char* data, size_t size,
                     std::set<std::string, std::less<>>* names, ExampleBlock* block);

}  // namespace hps
