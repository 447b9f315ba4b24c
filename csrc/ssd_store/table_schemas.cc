// The comparison of a table's schema with the one that the store has fixed.
//
// Above it: table_schemas.h. Below it: manifest_records.
#include "ssd_store/table_schemas.h"

#include <algorithm>
#include <sstream>

namespace hps {
namespace {

std::string Describe(double first, double second) {
  std::ostringstream out;
  out << '(' << first << ", " << second << ')';
  return out.str();
}

Status Mismatch(const std::string& subject, const std::string& field, const std::string& stored,
                const std::string& value) {
  return Status(StatusCode::kConfig, subject + ": stored " + field + " is " + stored +
                                         ", requested is " + value +
                                         "; it is fixed once the store exists: use the stored one, "
                                         "or another path");
}

const char* KindName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kRowWiseAdagrad:
      return "rowwise_adagrad";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kFtrl:
      return "ftrl";
  }
  return "unknown";
}

Status CompareSchemas(const TableSchema& stored, const TableSchema& asked) {
  const std::string table = "table '" + asked.name + "'";
  if (stored.dim != asked.dim) {
    return Mismatch(table, "dim", std::to_string(stored.dim), std::to_string(asked.dim));
  }
  if (stored.kind != asked.kind) {
    return Mismatch(table, "optimizer", KindName(stored.kind), KindName(asked.kind));
  }
  if (stored.has_statistics != asked.has_statistics) {
    const auto word = [](bool is_on) { return is_on ? "True" : "False"; };
    return Mismatch(table, "statistics", word(stored.has_statistics), word(asked.has_statistics));
  }
  if (stored.is_narrow != asked.is_narrow) {
    const auto word = [](bool is_narrow) { return is_narrow ? "bfloat16" : "float32"; };
    const Status fixed = Mismatch(table, "dtype", word(stored.is_narrow), word(asked.is_narrow));
    return Status(fixed.code(), fixed.message() + "; 'hps export' and 'hps import --row-dtype " +
                                    word(asked.is_narrow) + "' make a copy of the rows that is so");
  }
  if (stored.row_bytes != asked.row_bytes) {
    return Mismatch(table, "row_bytes", std::to_string(stored.row_bytes),
                    std::to_string(asked.row_bytes));
  }
  const double* left = stored.initializer_numbers;
  const double* right = asked.initializer_numbers;
  if (stored.initializer != asked.initializer || left[0] != right[0] || left[1] != right[1]) {
    return Mismatch(table, "initializer", stored.initializer + Describe(left[0], left[1]),
                    asked.initializer + Describe(right[0], right[1]));
  }
  return Status::Ok();
}

}  // namespace

const TableSchema* FindSchema(const std::vector<TableSchema>& schemas, const std::string& name) {
  for (const TableSchema& schema : schemas) {
    if (schema.name == name) return &schema;
  }
  return nullptr;
}

void AddSchemas(const StoreOptions& options, OpenRecord* open) {
  uint32_t next_id = 1;
  for (const TableSchema& schema : open->tables) next_id = std::max(next_id, schema.id + 1);
  for (const TableSchema& asked : options.tables) {
    if (FindSchema(open->tables, asked.name) != nullptr) continue;
    open->tables.push_back(asked);
    open->tables.back().id = next_id++;
    open->tables.back().has_deaths = asked.has_statistics;
  }
}

Status CheckSchemas(const StoreOptions& options, const OpenRecord& open) {
  if (options.has_seed && open.seed != options.seed) {
    return Mismatch(options.path, "seed", std::to_string(open.seed), std::to_string(options.seed));
  }
  for (const TableSchema& asked : options.tables) {
    const TableSchema* stored = FindSchema(open.tables, asked.name);
    if (stored != nullptr) {
      HPS_RETURN_IF_ERROR(CompareSchemas(*stored, asked));
    } else if (options.read_only) {
      return Status(StatusCode::kConfig,
                    options.path + ": the store has no table '" + asked.name + "'");
    }
  }
  return Status::Ok();
}

}  // namespace hps
