// hps._C.ShardPlan: numpy arrays in, verbs of csrc/sharding out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bags.h"
#include "bindings/bind.h"
#include "bindings/translate.h"
#include "sharding/shard_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

using Floats = Matrix<const float>;

std::unique_ptr<ShardPlan> MakePlan(const std::vector<uint32_t>& owners,
                                    const std::string& instruction_set) {
  std::unique_ptr<ShardPlan> plan;
  ThrowIfError(ShardPlan::Open(owners, instruction_set, &plan));
  return plan;
}

void CheckRows(const Floats& rows, int64_t count) {
  CheckShape(rows.shape(0) == static_cast<size_t>(count) && rows.shape(1) > 0,
             "a float32 array [count, dim] is needed");
}

int64_t SumGradients(ShardPlan& plan, const Floats& gradients) {
  CheckRows(gradients, plan.num_occurrences());
  nb::gil_scoped_release unlocked;
  return plan.SumGradients(gradients.data(), static_cast<int32_t>(gradients.shape(1)));
}

int64_t SumBagGradients(ShardPlan& plan, const Offsets& offsets, const Weights& weights, bool mean,
                        const Floats& gradients) {
  const size_t dim = gradients.shape(1);
  CheckShape(dim > 0, "gradients [F * B, dim] are needed");
  const BagsView bags =
      BagsOfGradients(offsets, weights, mean, gradients, dim, plan.num_occurrences());
  nb::gil_scoped_release unlocked;
  return plan.SumGradients(gradients.data(), static_cast<int32_t>(dim), &bags);
}

int64_t CopyGradients(const ShardPlan& plan, const Floats& gradients, const Vector<uint8_t>& out) {
  CheckRows(gradients, static_cast<int64_t>(gradients.shape(0)));
  CheckShape(out.size() == gradients.size() * sizeof(float),
             "as many bytes as the gradients have are needed");
  nb::gil_scoped_release unlocked;
  return plan.CopyGradients(gradients.data(), static_cast<int64_t>(gradients.shape(0)),
                            static_cast<int32_t>(gradients.shape(1)), out.data());
}

// (shows, clicks), each uint32 [num_unique], of the plan's distinct keys.
nb::tuple Count(ShardPlan& plan, const std::optional<Vector<const uint8_t>>& labels) {
  CheckShape(!labels || labels->size() == static_cast<size_t>(plan.num_occurrences()),
             "uint8 labels [occurrences of the plan] are needed");
  NewVector<uint32_t> shows(static_cast<size_t>(plan.num_unique()));
  NewVector<uint32_t> clicks(static_cast<size_t>(plan.num_unique()));
  {
    nb::gil_scoped_release unlocked;
    plan.Count(labels ? labels->data() : nullptr, shows.data.get(), clicks.data.get());
  }
  return nb::make_tuple(shows.Give(), clicks.Give());
}

// The rows of each shard, all of one width.
std::vector<const float*> RowsOf(const ShardPlan& plan, const std::vector<Floats>& parts) {
  CheckShape(static_cast<int>(parts.size()) == plan.num_shards(), "rows of each shard are needed");
  std::vector<const float*> rows;
  for (size_t shard = 0; shard < parts.size(); ++shard) {
    const int64_t count = plan.starts()[shard + 1] - plan.starts()[shard];
    CheckRows(parts[shard], count);
    CheckShape(parts[shard].shape(1) == parts[0].shape(1), "the shards' rows differ in dim");
    rows.push_back(parts[shard].data());
  }
  return rows;
}

void Pool(ShardPlan& plan, const std::vector<Floats>& parts, const Offsets& offsets,
          const Weights& weights, bool mean, const Matrix<float>& out) {
  const std::vector<const float*> rows = RowsOf(plan, parts);
  const size_t dim = parts[0].shape(1);
  const BagsView bags = BagsOf(offsets, weights, mean, out, dim, plan.num_occurrences());
  nb::gil_scoped_release unlocked;
  plan.Pool(rows, bags, static_cast<int32_t>(dim), out.data());
}

void Scatter(ShardPlan& plan, const std::vector<Floats>& parts, const Matrix<float>& out) {
  const std::vector<const float*> rows = RowsOf(plan, parts);
  CheckShape(parts[0].shape(1) == out.shape(1), "rows and out differ in dim");
  CheckShape(out.shape(0) == static_cast<size_t>(plan.num_occurrences()),
             "out [occurrences of the plan, dim] is needed");
  nb::gil_scoped_release unlocked;
  plan.Scatter(rows, static_cast<int32_t>(out.shape(1)), out.data());
}

// Of every key its virtual shard.
auto VirtualShards(const Keys& keys, uint64_t num_virtual) {
  CheckShape(num_virtual > 0, "num_virtual must be above 0");
  NewVector<uint32_t> shards(keys.size());
  {
    nb::gil_scoped_release unlocked;
    for (size_t i = 0; i < keys.size(); ++i) {
      shards.data[i] = static_cast<uint32_t>(ShardPlan::VirtualShard(keys.data()[i], num_virtual));
    }
  }
  return shards.Give();
}

}  // namespace

void BindShardPlan(nb::module_& module) {
  nb::class_<ShardPlan>(module, "ShardPlan")
      .def(nb::new_(&MakePlan), "owners"_a, "instruction_set"_a = "auto")
      .def(
          "build",
          [](ShardPlan& plan, Keys keys) {
            nb::gil_scoped_release unlocked;
            plan.Build(keys.data(), static_cast<int64_t>(keys.size()));
          },
          "keys"_a.noconvert())
      .def(
          "matches",
          [](const ShardPlan& plan, Keys keys) {
            return plan.Matches(keys.data(), static_cast<int64_t>(keys.size()));
          },
          "keys"_a.noconvert())
      .def(
          "seem_distinct",
          [](ShardPlan& plan, Keys keys) {
            return plan.SeemDistinct(keys.data(), static_cast<int64_t>(keys.size()));
          },
          "keys"_a.noconvert())
      .def_prop_ro("num_occurrences", &ShardPlan::num_occurrences)
      .def_prop_ro("num_unique", &ShardPlan::num_unique)
      .def_prop_ro("num_shards", &ShardPlan::num_shards)
      .def_prop_ro("starts", [](const ShardPlan& plan) { return plan.starts(); })
      .def_prop_ro("unique_keys",
                   [](nb::handle_t<ShardPlan> handle) {
                     const auto& plan = nb::cast<const ShardPlan&>(handle);
                     return View(plan.unique_keys(), {static_cast<size_t>(plan.num_unique())},
                                 handle);
                   })
      .def("sum_gradients", &SumGradients, "grads"_a.noconvert())
      .def("sum_bag_gradients", &SumBagGradients, "offsets"_a.noconvert(),
           "weights"_a.noconvert().none(), "mean"_a, "grads"_a.noconvert())
      .def("count", &Count, "labels"_a.noconvert().none() = nb::none())
      .def("copy_gradients", &CopyGradients, "grads"_a.noconvert(), "out"_a.noconvert())
      .def(
          "sums",
          [](nb::handle_t<ShardPlan> handle, size_t dim) {
            const auto& plan = nb::cast<const ShardPlan&>(handle);
            CheckShape(plan.sums() != nullptr, "sum_gradients comes first");
            return View(plan.sums(), {static_cast<size_t>(plan.num_unique()), dim}, handle);
          },
          "dim"_a)
      .def("scatter", &Scatter, "parts"_a, "out"_a.noconvert())
      .def("pool", &Pool, "parts"_a, "offsets"_a.noconvert(), "weights"_a.noconvert().none(),
           "mean"_a, "out"_a.noconvert());
  module.def("virtual_shards", &VirtualShards, "keys"_a.noconvert(), "num_virtual"_a);
}

}  // namespace hps
