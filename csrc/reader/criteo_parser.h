// The criteo format: label, whole numbers and categories, separated by tabs.
//
// Above it: TextParser. Below it: scan_text, common/hash.h.
#pragma once

#include <cstddef>

#include "reader/example_block.h"
#include "reader/text_schema.h"

namespace hps {

// Parses `size` bytes of whole lines (the last may lack its newline) into `block`, which is cleared
// first. Stops at the first bad line unless the schema skips them. Thread-safe: the schema is only
// read. size < 2^32.
void ParseCriteo(const TextSchema& schema, const char* data, size_t size, ExampleBlock* block);

}  // namespace hps
