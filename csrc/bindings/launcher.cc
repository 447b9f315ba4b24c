// hps._C.Launcher, BlockRing, TableBlock: how kernels are queued; see launcher.h.
#include "bindings/launcher.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <stdexcept>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "gpu_cache/host_row_group.h"
#include "gpu_cache/kernel_list.h"

using namespace nb::literals;

namespace hps {
namespace {

constexpr unsigned kBlockThreads = 256;

std::map<std::string, LaunchableKernel, std::less<>> AllKernels() {
  std::map<std::string, LaunchableKernel, std::less<>> kernels;
#define HPS_ADD_KERNEL(Name, Body, Args, kLanes) kernels[#Name] = {nullptr, kLanes, sizeof(Args)};
#define HPS_ADD_TABLES_KERNEL(Name, Body, Args, kLanes) \
  kernels[#Name] = {nullptr, kLanes, sizeof(Tables)};
  HPS_GPU_KERNELS(HPS_ADD_KERNEL)
  HPS_TABLES_KERNELS(HPS_ADD_TABLES_KERNEL)
#undef HPS_ADD_KERNEL
#undef HPS_ADD_TABLES_KERNEL
  return kernels;
}

void RequireDone(int code, const char* what) {
  if (code == 0) return;
  throw std::runtime_error(std::string("the device's driver refuses ") + what + ": CUDA error " +
                           std::to_string(code));
}

std::string_view NameOf(nb::handle name) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<size_t>(size)};
}

// As the driver's functions, and queue nothing: for measurements of all else.
int LaunchNothing(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void*, void**, void**) {
  return 0;
}
int CopyNothing(uint64_t, const void*, size_t, void*) { return 0; }

}  // namespace

Launcher::Launcher(uint64_t launch, uint64_t copy, const std::map<std::string, uint64_t>& functions,
                   int64_t most_blocks)
    : launch_(reinterpret_cast<LaunchFunction>(launch)),
      copy_(reinterpret_cast<CopyFunction>(copy)),
      most_blocks_(most_blocks),
      kernels_(AllKernels()) {
  CheckShape(launch != 0 && copy != 0 && most_blocks > 0, "functions of the driver are needed");
  for (auto& [name, kernel] : kernels_) {
    const auto found = functions.find(name);
    CheckShape(found != functions.end(), ("a function for kernel " + name + " is needed").c_str());
    kernel.function = reinterpret_cast<void*>(found->second);
  }
}

const LaunchableKernel& Launcher::Find(std::string_view name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) {
    throw nb::value_error(("no kernel '" + std::string(name) + "'").c_str());
  }
  return found->second;
}

void Launcher::Launch(const LaunchableKernel& kernel, const void* args, int64_t count,
                      uint64_t stream) {
  if (count == 0) return;
  const int64_t blocks = (count * kernel.lanes + kBlockThreads - 1) / kBlockThreads;
  void* params[] = {const_cast<void*>(args), &count};
  const int code = launch_(kernel.function, static_cast<unsigned>(std::min(blocks, most_blocks_)),
                           1, 1, kBlockThreads, 1, 1, 0, reinterpret_cast<void*>(stream),
                           static_cast<void**>(params), nullptr);
  RequireDone(code, "a kernel");
  ++num_launches_;
}

void Launcher::Copy(uint64_t target, const void* source, size_t bytes, uint64_t stream) {
  RequireDone(copy_(target, source, bytes, reinterpret_cast<void*>(stream)), "a copy");
}

BlockRing::Piece BlockRing::Take(size_t bytes, bool goes_there) {
  const size_t needed = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (size_ - used_ < needed) {
    size_ = used_ = 0;  // also where an interrupt ends the call, after which the rest is not ours
    const auto [pinned, on_device, size] =
        nb::cast<std::tuple<uint64_t, uint64_t, size_t>>(next_(needed, goes_there));
    CheckShape(size >= needed, "a chunk of so many bytes is needed");
    pinned_ = reinterpret_cast<uint8_t*>(pinned);
    on_device_ = on_device;
    size_ = size;
    used_ = 0;
  }
  const Piece piece = {pinned_ + used_, on_device_ + used_};
  used_ += needed;
  return piece;
}

TableBlock::TableBlock(Launcher* launcher, BlockRing* ring, uint64_t stream, size_t num_tables,
                       size_t num_launches, size_t args_bytes, size_t more_bytes)
    : launcher_(launcher),
      stream_(stream),
      num_tables_(num_tables),
      num_launches_(num_launches),
      ends_bytes_(num_tables * num_launches * sizeof(int64_t)),
      more_at_(ends_bytes_ + num_tables * args_bytes),
      bytes_(more_at_ + more_bytes),
      piece_(ring->Take(bytes_, true)) {
  CheckShape(num_tables > 0 && num_launches > 0, "a table and a launch are needed");
}

void TableBlock::SetItems(size_t launch, size_t table, int64_t count) {
  auto* const ends = reinterpret_cast<int64_t*>(piece_.pinned) + launch * num_tables_;
  ends[table] = (table == 0 ? 0 : ends[table - 1]) + count;
}

Tables TableBlock::TablesOf(size_t launch) const {
  CheckShape(launch < num_launches_, "the number of a launch is needed");
  const uint64_t ends = piece_.on_device + launch * num_tables_ * sizeof(int64_t);
  return {reinterpret_cast<const void*>(piece_.on_device + ends_bytes_),
          reinterpret_cast<const int64_t*>(ends), static_cast<int64_t>(num_tables_)};
}

void TableBlock::Queue(const nb::args& launches) {
  CheckShape(launches.size() % 2 == 0, "names of kernels and numbers of launches are needed");
  std::vector<Launch> wanted;
  wanted.reserve(launches.size() / 2);
  for (size_t i = 0; i < launches.size(); i += 2) {
    wanted.push_back({&launcher_->Find(NameOf(launches[i])), nb::cast<size_t>(launches[i + 1])});
  }
  Queue(wanted);
}

void TableBlock::Queue(const std::vector<Launch>& launches) {
  for (const Launch& launch : launches) {
    CheckShape(launch.number < num_launches_ && launch.kernel->args_bytes == sizeof(Tables),
               "a kernel over tables and the number of a launch are needed");
  }
  const nb::gil_scoped_release unlocked;
  Send();
  for (const Launch& launch : launches) {
    const auto* const ends =
        reinterpret_cast<const int64_t*>(piece_.pinned) + launch.number * num_tables_;
    const Tables tables = TablesOf(launch.number);
    launcher_->Launch(*launch.kernel, &tables, ends[num_tables_ - 1], stream_);
  }
}

void TableBlock::QueueOther(std::string_view kernel, const void* args, int64_t count) {
  const LaunchableKernel& found = launcher_->Find(kernel);
  const nb::gil_scoped_release unlocked;
  Send();
  launcher_->Launch(found, args, count, stream_);
}

void TableBlock::QueueKinds(const std::string& prefix) {
  std::vector<Launch> launches;
  for (size_t i = 0; i < kinds.size(); ++i) {
    launches.push_back({&launcher_->Find(prefix + kinds[i]), i});
  }
  Queue(launches);
}

void TableBlock::Send() {
  if (is_sent_) return;
  launcher_->Copy(piece_.on_device, piece_.pinned, bytes_, stream_);
  is_sent_ = true;
}

void BindLauncher(nb::module_& module) {
  nb::class_<Launcher>(module, "Launcher")
      .def(nb::init<uint64_t, uint64_t, const std::map<std::string, uint64_t>&, int64_t>(),
           nb::kw_only(), "launch"_a, "copy"_a, "functions"_a, "most_blocks"_a)
      .def(
          "launch",
          [](Launcher& launcher, const std::string& kernel, const nb::bytes& args, int64_t count,
             uint64_t stream) {
            const LaunchableKernel& found = launcher.Find(kernel);
            CheckShape(args.size() == found.args_bytes, "args of another size");
            CheckShape(count >= 0, "a count of items is needed");
            const nb::gil_scoped_release unlocked;
            launcher.Launch(found, args.c_str(), count, stream);
          },
          "kernel"_a, "args"_a, "count"_a, "stream"_a)
      .def_prop_ro("num_launches", &Launcher::num_launches);
  nb::class_<BlockRing>(module, "BlockRing").def(nb::init<nb::object>(), "next"_a);
  nb::class_<TableBlock>(module, "TableBlock")
      .def("launch", nb::overload_cast<const nb::args&>(&TableBlock::Queue))
      .def("launch_kinds", &TableBlock::QueueKinds, "prefix"_a);
  module.def("idle_driver", [] {
    return std::pair{reinterpret_cast<uint64_t>(&LaunchNothing),
                     reinterpret_cast<uint64_t>(&CopyNothing)};
  });
}

}  // namespace hps
