// What is fixed about the tables of a store: the check of what an opening asks for, and new tables.
//
// Above it: commits, store_tables, store_open. Below it: manifest_records.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "ssd_store/store_options.h"

namespace hps {

// nullptr: there is no table of that name.
const TableSchema* FindSchema(const std::vector<TableSchema>& schemas, const std::string& name);
// kConfig: what the options ask for is not what is stored, or a reader asks for a table too many.
Status CheckSchemas(const StoreOptions& options, const OpenRecord& open);
// Adds the tables of the options that the record lacks, each with an id of its own.
void AddSchemas(const StoreOptions& options, OpenRecord* open);

}  // namespace hps
