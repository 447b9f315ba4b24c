// The GPU kernels as Python's launcher sees them: their text, the structs they are given, and a way
// to run one over host memory, by which the launcher is tested without a GPU.
//
// Above it: hps/gpu_cache. Below it: csrc/gpu_cache. A struct is described field by field, so that
// numpy can fill it; that no field is left out is checked when this is compiled.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/translate.h"
#include "common/float_mode.h"
#include "gpu_cache/host_row_group.h"
#include "gpu_cache/kernel_list.h"
#include "gpu_cache/table_memory.h"

using namespace nb::literals;

namespace hps {

extern const char* const kGpuKernelSource;  // made by tools/embed_kernels.py

namespace {

// (name, numpy's format or the name of a struct, offset)
using Field = std::tuple<std::string, std::string, size_t>;
// (size, fields)
using Struct = std::pair<size_t, std::vector<Field>>;
using Structs = std::map<std::string, Struct>;

// Converts to anything: of how many a struct can be made is how many fields it has.
struct Anything {
  template <class T>
  operator T() const;
};

template <class T, class... Given>
constexpr size_t CountFields() {
  if constexpr (requires { T{Given{}..., Anything{}}; }) {
    return CountFields<T, Given..., Anything>();
  } else {
    return sizeof...(Given);
  }
}

template <class T>
constexpr size_t CountIn() {
  return std::is_array_v<T> ? std::extent_v<T> : 1;
}

template <class T>
struct Description;

// One letter for the kind, one digit for the bytes.
std::string Format(char kind, size_t size) { return {kind, static_cast<char>('0' + size)}; }

template <class T>
std::string FormatOf(Structs* structs) {
  if constexpr (std::is_array_v<T>) {
    std::string format = "(";
    format.append(std::to_string(std::extent_v<T>)).append(",)");
    return format.append(FormatOf<std::remove_extent_t<T>>(structs));
  } else if constexpr (std::is_enum_v<T>) {
    return FormatOf<std::underlying_type_t<T>>(structs);
  } else if constexpr (std::is_pointer_v<T>) {
    return Format('u', sizeof(T));
  } else if constexpr (std::is_floating_point_v<T>) {
    return Format('f', sizeof(T));
  } else if constexpr (std::is_integral_v<T>) {
    return Format(std::is_signed_v<T> ? 'i' : 'u', sizeof(T));
  } else {
    return Description<T>::AddTo(structs);
  }
}

// Calls macro(x) for each of up to 64 arguments.
#define HPS_PARENTHESES ()
#define HPS_EXPAND(...) HPS_EXPAND_16(HPS_EXPAND_16(HPS_EXPAND_16(HPS_EXPAND_16(__VA_ARGS__))))
#define HPS_EXPAND_16(...) HPS_EXPAND_4(HPS_EXPAND_4(HPS_EXPAND_4(HPS_EXPAND_4(__VA_ARGS__))))
#define HPS_EXPAND_4(...) HPS_EXPAND_1(HPS_EXPAND_1(HPS_EXPAND_1(HPS_EXPAND_1(__VA_ARGS__))))
#define HPS_EXPAND_1(...) __VA_ARGS__
#define HPS_EACH(macro, ...) HPS_EXPAND(HPS_EACH_STEP(macro, __VA_ARGS__))
#define HPS_EACH_STEP(macro, first, ...) \
  macro(first) __VA_OPT__(HPS_EACH_AGAIN HPS_PARENTHESES(macro, __VA_ARGS__))
#define HPS_EACH_AGAIN() HPS_EACH_STEP

#define HPS_FIELD(name) {#name, FormatOf<decltype(Type::name)>(structs), offsetof(Type, name)},
#define HPS_FIELD_COUNT(name) +CountIn<decltype(Type::name)>()

#define HPS_DESCRIBE(Name, ...)                                                     \
  template <>                                                                       \
  struct Description<Name> {                                                        \
    using Type = Name;                                                              \
    static_assert(std::is_standard_layout_v<Type>);                                 \
    static_assert(CountFields<Type>() == 0 HPS_EACH(HPS_FIELD_COUNT, __VA_ARGS__)); \
    static std::string AddTo(Structs* structs) {                                    \
      const Struct fields = {sizeof(Type), {HPS_EACH(HPS_FIELD, __VA_ARGS__)}};     \
      structs->emplace(#Name, fields);                                              \
      return #Name;                                                                 \
    }                                                                               \
  }

HPS_DESCRIBE(TableShape, num_parts, buckets_per_part, part_bits, row_bytes);
HPS_DESCRIBE(TableView, shape, digests, spilled, marks, pins, rows, floats);
HPS_DESCRIBE(InitializerSpec, kind, first, second, stream);
HPS_DESCRIBE(OptimizerNumbers, eps, initial_accumulator, beta1, beta2, one_minus_beta1,
             one_minus_beta2, beta, l1, l2, weight_decay);
HPS_DESCRIBE(CacheClock, used_since_tick, sweep_bucket, num_swept, now, keeps_stamps, has_wants,
             is_watched);
HPS_DESCRIBE(LifeRules, powers, min_score, nonclick, click, unseen);
HPS_DESCRIBE(CacheArgs, table, bucket_lists, clock, counters, initializer, numbers, kind, dim,
             period, more_shows, rules);
HPS_DESCRIBE(BatchNumbers, num_unique, window_first, window_size, num_missing, num_victims, is_full,
             refused, culprit, largest, is_wild, num_placed, num_listed, open, num_pinned_erased,
             num_spared);
HPS_DESCRIBE(RankedFlags, words, sums, ranks);
HPS_DESCRIBE(SlotMark, stamp, flags);
HPS_DESCRIBE(Reservation, slot, victim_key, spilled_from, unspilled_from, victim_mark,
             victim_digest, had_victim);
HPS_DESCRIBE(BatchArgs, num_occurrences, numbers, id_table, id_mask, first_flags, first_ranks,
             inverse, unique_keys, slots, pinned, missing_flags, missing, missing_keys,
             reservations, emptier, links, other_links, entries, victims, counts);
HPS_DESCRIBE(DeduplicateArgs, batch, keys);
HPS_DESCRIBE(FindArgs, cache, batch, first, count, bound, told, pins);
HPS_DESCRIBE(ReserveArgs, cache, batch, bound, victims, told, told_keys);
HPS_DESCRIBE(FillArgs, cache, batch, images, found, bound, creates, lr);
HPS_DESCRIBE(GatherArgs, cache, batch, out);
HPS_DESCRIBE(PoolArgs, cache, batch, offsets, weights, out, num_examples, pitch, is_mean);
HPS_DESCRIBE(ImagesArgs, cache, batch, images, bound);
HPS_DESCRIBE(InitialWeightsArgs, cache, keys, out);
HPS_DESCRIBE(TermArgs, gradients, origins, weights, keys, run_sums, are_aligned);
HPS_DESCRIBE(SumArgs, cache, batch, terms, offsets, weights, given, num_examples, pitch, divided,
             arrived, unordered, arrivals, row_keys);
HPS_DESCRIBE(Tables, args, ends, num_tables);
HPS_DESCRIBE(Failure, is_set, cache, key);
HPS_DESCRIBE(ApplyTermsArgs, cache, batch, sums, failure, bound, lr);
HPS_DESCRIBE(TryTermsArgs, cache, batch, sums, safe, bound, lr, number);
HPS_DESCRIBE(NoteFailureArgs, tables, failure);
HPS_DESCRIBE(AssignArgs, cache, batch, rows, state, statistics, last, bound, lr);
HPS_DESCRIBE(CreateArgs, cache, batch, bound, lr);
HPS_DESCRIBE(KeysArgs, cache, keys, presence, slots, first_pinned);
HPS_DESCRIBE(DivideArgs, batch, owners, sorted, positions, first_position, first_owner, num_ranks,
             num_virtual, ids, told_keys, told_starts);
HPS_DESCRIBE(KeptRests, keys, is_used, last, rows, num_slots);
HPS_DESCRIBE(Verdict, refused, largest);
HPS_DESCRIBE(JudgeArgs, batch, ids, terms, sums, kept, verdict, dim, divisor, ordinary, limit);
HPS_DESCRIBE(SendArgs, cache, batch, values, ids, kept, message, first, count, dim, wire);
HPS_DESCRIBE(ReceiveArgs, message, rows, count, dim, wire);
HPS_DESCRIBE(ScanArgs, cache, first, count, most, dirty_only, ranks, rows, result);

using Kernels = std::map<std::string, std::tuple<std::string, int, std::string>>;

// ({struct: (size, fields)}, {kernel: (its argument's struct, lanes an item, the struct of each of
// its Tables or nothing)})
std::pair<Structs, Kernels> DescribeKernels() {
  Structs structs;
  Kernels kernels;
#define HPS_ADD_KERNEL(Name, Body, Args, kLanes) \
  kernels.emplace(#Name, Kernels::mapped_type(Description<Args>::AddTo(&structs), kLanes, ""));
#define HPS_ADD_TABLES_KERNEL(Name, Body, Args, kLanes)                                     \
  kernels.emplace(#Name, Kernels::mapped_type(Description<Tables>::AddTo(&structs), kLanes, \
                                              Description<Args>::AddTo(&structs)));
  HPS_GPU_KERNELS(HPS_ADD_KERNEL)
  HPS_TABLES_KERNELS(HPS_ADD_TABLES_KERNEL)
#undef HPS_ADD_KERNEL
#undef HPS_ADD_TABLES_KERNEL
  std::get<2>(kernels.at("NoteFailure")) = Description<TryTermsArgs>::AddTo(&structs);
  Description<BatchNumbers>::AddTo(&structs);
  Description<CacheClock>::AddTo(&structs);
  Description<Failure>::AddTo(&structs);
  Description<Reservation>::AddTo(&structs);
  Description<Verdict>::AddTo(&structs);
  return {structs, kernels};
}

template <class Args, class Body>
void RunItems(const nb::bytes& bytes, int64_t count, Body body) {
  if (bytes.size() != sizeof(Args)) throw nb::value_error("args of another size");
  Args args;
  std::memcpy(&args, bytes.c_str(), sizeof(Args));
  nb::gil_scoped_release unlocked;
  const DefaultFloatMode mode;
  for (int64_t i = 0; i < count; ++i) body(args, i);
}

template <class Args, class Body>
void RunTables(const nb::bytes& bytes, int64_t count, Body body) {
  if (bytes.size() != sizeof(Tables)) throw nb::value_error("args of another size");
  Tables tables;
  std::memcpy(&tables, bytes.c_str(), sizeof(Tables));
  if (tables.ends[tables.num_tables - 1] != count) throw nb::value_error("another count of items");
  nb::gil_scoped_release unlocked;
  const DefaultFloatMode mode;
  ForItems<Args>(tables, 0, count, 1, body);
}

// Runs a kernel over items [0, count) of host memory, one after the other.
void RunKernel(const std::string& kernel, const nb::bytes& bytes, int64_t count) {
#define HPS_RUN_KERNEL(Name, Body, Args, kLanes)                                            \
  if (kernel == #Name) {                                                                    \
    return RunItems<Args>(bytes, count,                                                     \
                          [](const Args& args, int64_t i) { Body(HostGroup{}, args, i); }); \
  }
#define HPS_RUN_TABLES_KERNEL(Name, Body, Args, kLanes)                                      \
  if (kernel == #Name) {                                                                     \
    return RunTables<Args>(bytes, count,                                                     \
                           [](const Args& args, int64_t i) { Body(HostGroup{}, args, i); }); \
  }
  HPS_GPU_KERNELS(HPS_RUN_KERNEL)
  HPS_TABLES_KERNELS(HPS_RUN_TABLES_KERNEL)
#undef HPS_RUN_KERNEL
#undef HPS_RUN_TABLES_KERNEL
  throw nb::value_error(("no kernel '" + kernel + "'").c_str());
}

// (bytes of memory that the cache takes, CacheArgs for that memory at address `base`)
std::pair<int64_t, nb::bytes> MakeCacheArgs(const std::string& optimizer_kind,
                                            const std::vector<double>& hyperparameters, int64_t dim,
                                            int64_t capacity_bytes,
                                            const std::string& initializer_kind,
                                            std::pair<double, double> initializer_numbers,
                                            uint64_t stream, uint64_t base, bool statistics) {
  CacheArgs args = {};
  args.kind = ParseOptimizer(optimizer_kind);
  args.dim = static_cast<int32_t>(dim);
  args.numbers = ParseNumbers(args.kind, hyperparameters);
  args.initializer = ParseInitializer(initializer_kind, initializer_numbers, stream);
  TableMemory memory;
  const RowLayout layout{args.kind, dim, statistics};
  ThrowIfError(TableMemory::Plan(capacity_bytes, layout.row_bytes(), &memory));
  memory.Bind(reinterpret_cast<uint8_t*>(base), layout.header_bytes(), &args);
  return {memory.bytes, nb::bytes(&args, sizeof(args))};
}

}  // namespace

void BindGpuKernels(nb::module_& module) {
  module.def("gpu_kernels", &DescribeKernels);
  module.def("gpu_kernel_source", [] { return std::string(kGpuKernelSource); });
  module.def("run_gpu_kernel", &RunKernel, "kernel"_a, "args"_a, "count"_a);
  module.def("gpu_cache_args", &MakeCacheArgs, nb::kw_only(), "optimizer_kind"_a,
             "hyperparameters"_a, "dim"_a, "capacity_bytes"_a, "initializer_kind"_a,
             "initializer_numbers"_a, "stream"_a, "base"_a, "statistics"_a = false);
}

}  // namespace hps
