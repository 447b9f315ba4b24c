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
  float lr;                 // of a step
  nb::object stack;         // whose rows they are, where that was read of them; else not valid
};

class DeviceBags {
 public:
  DeviceBags(int32_t device_type, int32_t device_number) : device_{device_type, device_number} {}

  // Bags of a plan's batch: offsets and weights None or tensors, values a tensor.
  // Raises:
  //   ValueError: what is not a tensor on the device, of the right type, in one piece.
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
      bags.weights = static_cast<const float*>(Require(LookAtFloats(weights, 1), kWeights).data());
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
  static void SetValues(const TensorView& view, BagsOfPlan* bags) {
    bags->values = static_cast<float*>(view.data());
    bags->num_rows = view.shape(0);
    bags->width = view.shape(1);
  }
  void Keep(nb::handle tensor) {
    if (!tensor.is_none()) tensors.append(tensor);
  }

  TensorDevice device_;
  nb::list plans_;
};

}  // namespace hps
