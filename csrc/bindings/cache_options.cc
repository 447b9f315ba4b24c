// What the arguments of a cache's constructor mean.
#include "bindings/cache_options.h"

namespace hps {

OptimizerKind ParseOptimizer(const std::string& name) {
  if (name == "sgd") return OptimizerKind::kSgd;
  if (name == "adagrad") return OptimizerKind::kAdagrad;
  if (name == "rowwise_adagrad") return OptimizerKind::kRowWiseAdagrad;
  if (name == "adam") return OptimizerKind::kAdam;
  if (name == "ftrl") return OptimizerKind::kFtrl;
  throw nb::value_error(("unknown optimizer kind '" + name + "'").c_str());
}

InitializerSpec ParseInitializer(const std::string& name, std::pair<double, double> numbers,
                                 uint64_t stream) {
  InitializerSpec spec;
  if (name == "constant") {
    spec.kind = InitializerKind::kConstant;
  } else if (name == "uniform") {
    spec.kind = InitializerKind::kUniform;
  } else if (name == "normal") {
    spec.kind = InitializerKind::kNormal;
  } else {
    throw nb::value_error(("unknown initializer kind '" + name + "'").c_str());
  }
  spec.first = static_cast<float>(numbers.first);
  spec.second = static_cast<float>(numbers.second);
  spec.stream = stream;
  return spec;
}

Rounding ParseRounding(const std::string& name) {
  if (name == "nearest") return Rounding::kNearest;
  if (name == "stochastic") return Rounding::kStochastic;
  throw nb::value_error(("unknown rounding '" + name + "'").c_str());
}

OptimizerNumbers ParseNumbers(OptimizerKind kind, const std::vector<double>& values) {
  const size_t wanted[] = {0, 1, 3, 3, 4, 4};
  if (values.size() != wanted[static_cast<int>(kind)]) {
    throw nb::value_error("wrong number of hyperparameters for this optimizer");
  }
  OptimizerNumbers numbers;
  const auto at = [&](int i) { return static_cast<float>(values[static_cast<size_t>(i)]); };
  switch (kind) {
    case OptimizerKind::kSgd:
      numbers.weight_decay = at(0);
      break;
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRowWiseAdagrad:
      numbers.eps = at(0);
      numbers.initial_accumulator = at(1);
      numbers.weight_decay = at(2);
      break;
    case OptimizerKind::kAdam:
      numbers.beta1 = at(0);
      numbers.beta2 = at(1);
      numbers.one_minus_beta1 = static_cast<float>(1.0 - values[0]);
      numbers.one_minus_beta2 = static_cast<float>(1.0 - values[1]);
      numbers.eps = at(2);
      numbers.weight_decay = at(3);
      break;
    case OptimizerKind::kFtrl:
      numbers.beta = at(0);
      numbers.l1 = at(1);
      numbers.l2 = at(2);
      numbers.initial_accumulator = at(3);
      break;
  }
  return numbers;
}

}  // namespace hps
