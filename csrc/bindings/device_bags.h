// DeviceBags: bags of several tables on a device, and where their values come from or go to, as
// verbs over the tables take them.
//
// Above it: device_verbs.h; pinned_rows.cc, which makes them of a step's own objects. Below it:
// device_plan.h, tensor_view.h. Addresses are good as long as the bags live.
#pragma once

#include <string>

#include "bindings/device_plan.h"
#include "bindings/tensor_view.h"

namespace hps {

struct BagsOfPlan {
  nb::object owner;
  DevicePlanState* plan;
  const int64_t* offsets;  // null: values are of occurrences
  const float* weights;
  int64_t num_bags;  // or occurrences
  bool is_mean;
  float* values;
  int64_t num_rows, width;  // of the values
  int64_t pitch;            // floats from a row of them to the next
  bool is_placed;           // they are part of rows of several tables
  float lr;                 // of a step
  nb::object stack;         // whose rows they are, where that was read of them; else not valid
};

class DeviceBags {
 public:
  DeviceBags(int32_t device_type, int32_t device_number) : device_{device_type, device_number} {}

  // Bags of a plan's batch: offsets and weights None or tensors, values a tensor.
  // Raises:
  //   ValueError: what is not a tensor on the device, of the right type, in one piece; weights that
  //   are not one a key.
  void Add(nb::object plan, nb::handle offsets, nb::handle weights, bool is_mean, nb::handle values,
           float lr) {
    BagsOfPlan bags = {};
    bags.plan = nb::cast<DevicePlanState*>(plan);
    bags.owner = std::move(plan);
    bags.is_mean = is_mean;
    bags.lr = lr;
    bags.num_bags = bags.plan->num_occurrences;
    if (!offsets.is_none()) SetOffsets(Require(LookAtOffsets(offsets), kOffsets), &bags);
    if (!weights.is_none()) {
      SetWeights(Require(LookAtFloats(weights, 1), kWeights), &bags);
      Keep(weights);
    }
    SetValues(Require(LookAtFloats(values, 2), kValues), &bags);
    Keep(offsets);
    Keep(values);
    tables.push_back(std::move(bags));
  }

  // Bags of a plan's batch whose values are a tensor. False, and nothing is added, if that is not
  // as it is needed.
  bool AddIfRight(nb::object owner, DevicePlanState* plan, const PoolingView& pooling,
                  nb::handle values, float lr) {
    const std::optional<TensorView> view = LookAtFloats(values, 2);
    if (!view) return false;
    BagsOfPlan& bags = tables.emplace_back();
    bags.plan = plan;
    bags.owner = std::move(owner);
    bags.is_mean = pooling.is_mean;
    bags.lr = lr;
    bags.offsets = pooling.starts;
    bags.weights = pooling.factors;
    bags.num_bags = pooling.num_bags;
    SetValues(*view, &bags);
    Keep(pooling.offsets);
    Keep(pooling.weights);
    Keep(values);
    return true;
  }

  // Bags of `count` features of a plan's batch, which lie from a column on in rows [B, width] that
  // several tables share; `is_mean` counts in place of the pooling's.
  // Raises:
  //   ValueError: there is no room for them, or they are not those of B examples.
  void AddPlaced(nb::object owner, DevicePlanState* plan, const PoolingView& pooling, bool is_mean,
                 const TensorView& values, int64_t column, int64_t count, float lr) {
    const int64_t width = count * plan->table.ptr->args.dim;
    CheckShape(pooling.num_bags == count * values.shape(0), "bags of F features of B are needed");
    CheckShape(0 <= column && column + width <= values.shape(1),
               "columns in [B, width] are needed");
    BagsOfPlan& bags = tables.emplace_back();
    bags.plan = plan;
    bags.owner = std::move(owner);
    bags.is_mean = is_mean;
    bags.lr = lr;
    bags.offsets = pooling.starts;
    bags.weights = pooling.factors;
    bags.num_bags = pooling.num_bags;
    SetValues(values, &bags);
    bags.values += column;
    bags.width = width;
    bags.is_placed = true;
    Keep(pooling.offsets);
    Keep(pooling.weights);
  }
  // What AddPlaced adds of.
  // Raises:
  //   ValueError: not float32 [B, width] in one piece, a tensor on the device.
  TensorView RequireValues(nb::handle values) {
    const TensorView view = Require(LookAtFloats(values, 2), kValues);
    Keep(values);
    return view;
  }

  // Offsets and weights of so many occurrences; false if anything is not as it is needed.
  bool LookAtPooling(nb::object offsets, nb::object weights, int64_t num_occurrences,
                     PoolingView* found) const {
    const std::optional<TensorView> starts = LookAtOffsets(offsets);
    if (!starts) return false;
    if (!weights.is_none()) {
      const std::optional<TensorView> factors = LookAtFloats(weights, 1);
      if (!factors || factors->shape(0) != num_occurrences) return false;
      found->factors = static_cast<const float*>(factors->data());
    }
    found->starts = static_cast<const int64_t*>(starts->data());
    found->num_bags = starts->shape(0) - 1;
    found->offsets = std::move(offsets);
    found->weights = std::move(weights);
    return true;
  }

  std::optional<TensorView> LookAtOffsets(nb::handle offsets) const {
    std::optional<TensorView> view = TensorView::On(device_, offsets);
    const bool is_right = view && view->num_dims() == 1 && view->dtype() == nb::dtype<int64_t>() &&
                          view->shape(0) > 0;
    return is_right ? view : std::nullopt;
  }
  std::optional<TensorView> LookAtFloats(nb::handle values, int32_t num_dims) const {
    std::optional<TensorView> view = TensorView::On(device_, values);
    const bool is_right =
        view && view->num_dims() == num_dims && view->dtype() == nb::dtype<float>();
    return is_right ? view : std::nullopt;
  }
  TensorDevice device() const { return device_; }

  // Bags of batches without keys, which nothing is to be summed of, are left out.
  void DropEmpty() {
    const auto is_empty = [](const BagsOfPlan& one) { return one.plan->num_occurrences == 0; };
    if (std::erase_if(tables, is_empty) > 0) plans_ = nb::list();
  }
  // A step of a plan whose gradients have been summed.
  void AddStep(nb::object plan, float lr) {
    BagsOfPlan bags = {};
    bags.plan = nb::cast<DevicePlanState*>(plan);
    bags.owner = std::move(plan);
    bags.lr = lr;
    tables.push_back(std::move(bags));
  }
  // Made once for all who ask; they leave it as it is.
  nb::list Plans() {
    if (plans_.size() != tables.size()) {
      plans_ = nb::list();
      for (const BagsOfPlan& one : tables) plans_.append(one.owner);
    }
    return plans_;
  }

  std::vector<BagsOfPlan> tables;
  // Tensors that others may give back while queued work reads them.
  nb::list tensors;
  // Of the arena, of which some of them are views; they live as long.
  nb::list parts;

 private:
  static constexpr const char* kOffsets =
      "offsets must be int64 [F * B + 1] in one piece, a tensor on the device";
  static constexpr const char* kWeights =
      "weights must be float32 [L] in one piece, a tensor on the device";
  static constexpr const char* kValues =
      "values must be float32 of two dimensions in one piece, a tensor on the device";

  static TensorView Require(const std::optional<TensorView>& view, const char* what) {
    CheckShape(view.has_value(), what);
    return *view;
  }
  static void SetOffsets(const TensorView& view, BagsOfPlan* bags) {
    bags->offsets = static_cast<const int64_t*>(view.data());
    bags->num_bags = view.shape(0) - 1;
  }
  static void SetWeights(const TensorView& view, BagsOfPlan* bags) {
    const int64_t num_keys = bags->plan->num_occurrences;
    CheckShape(view.shape(0) == num_keys,
               ("weights must be float32 [L], one of each of " + std::to_string(num_keys) +
                " keys, not of " + std::to_string(view.shape(0)))
                   .c_str());
    bags->weights = static_cast<const float*>(view.data());
  }
  static void SetValues(const TensorView& view, BagsOfPlan* bags) {
    bags->values = static_cast<float*>(view.data());
    bags->num_rows = view.shape(0);
    bags->width = bags->pitch = view.shape(1);
  }
  void Keep(nb::handle tensor) {
    if (!tensor.is_none()) tensors.append(tensor);
  }

  TensorDevice device_;
  nb::list plans_;
};

}  // namespace hps
