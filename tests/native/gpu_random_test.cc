// Random verbs, the same ones on dram_cache, on the host build of gpu_cache with 1, 2 and 4 threads
// and on emulated lanes: slots, bits, victims and counters must be one. And against a dictionary.
//
// Above it: CTest. Below it: gpu_cache_lab.h. Seeds are printed.
#include "gpu_cache_lab.h"

// The lab comes first: it names the build.
#include "common/hash.h"

namespace hps {
namespace {

struct Drive {
  uint64_t seed;
  int num_steps;
  size_t most_keys;
  uint64_t num_distinct;
};

// What a run showed. Equal runs, equal traces.
struct Trace {
  std::vector<uint64_t> events;
  std::map<int64_t, std::vector<uint8_t>> rows;
  int64_t evictions = 0;
  int64_t refusals = 0;
  int64_t second_bucket = 0;
  int64_t spared = 0;
  int64_t cancels = 0;
};

// Draws verbs and runs them on a cache over a dictionary that stands for the tiers below.
template <class Lab>
class Runner {
 public:
  using Plan = typename Lab::Plan;

  Runner(Lab* lab, const Drive& drive) : lab_(*lab), drive_(drive), random_(drive.seed) {}

  Trace Run() {
    for (int step = 0; step < drive_.num_steps; ++step) {
      Work();
      if (random_() % 4 == 0) Want();
      if (random_() % 4 == 0) Erase();
      if (random_() % 8 == 0) Export();
      for (const int64_t count : {lab_.num_rows(), lab_.num_fresh(), lab_.num_dirty(),
                                  lab_.num_pins(), lab_.num_created()}) {
        Note(static_cast<uint64_t>(count));
      }
    }
    while (!held_.empty()) LetGo();
    const DramCacheCounters counters = lab_.counters();
    for (const int64_t count : {counters.hits, counters.misses, counters.write_backs}) {
      Note(static_cast<uint64_t>(count));
    }
    trace_.evictions = counters.evictions;
    trace_.refusals = counters.refusals;
    trace_.second_bucket = counters.second_bucket;
    trace_.spared = counters.spared;
    trace_.rows = lab_.StoredRows();
    HPS_CHECK(lab_.num_pins() == 0);
    return std::move(trace_);
  }

 private:
  void Note(uint64_t event) { trace_.events.push_back(event); }
  void NoteBytes(const void* bytes, size_t count) {
    Note(Xxh64(static_cast<const uint8_t*>(bytes), count, 1));
  }

  Keys DrawKeys(size_t most) {
    Keys keys(random_() % most);
    // Some keys are hot, so that sums have many runs.
    const uint64_t hottest = random_() % drive_.num_distinct;
    for (uint64_t& key : keys) {
      key = random_() % 8 == 0 ? hottest : random_() % drive_.num_distinct;
      key = MixKey(key * 3);
    }
    return keys;
  }

  std::vector<float> DrawFloats(size_t count) {
    std::vector<float> floats(count);
    for (float& value : floats) value = static_cast<float>(random_() % 2001) * 0.001f - 1.0f;
    return floats;
  }

  void LetGo() {
    lab_->Release(held_.front().get());
    held_.erase(held_.begin());
  }

  void Work() {
    const Keys keys = DrawKeys(drive_.most_keys);
    auto plan = std::make_unique<Plan>();
    lab_->MakePlan(keys.data(), static_cast<int64_t>(keys.size()), plan.get());
    const bool is_whole = random_() % 4 != 0;
    const int64_t first = is_whole ? 0 : plan->num_unique() / 3;
    lab_->Find(plan.get(), first, is_whole ? -1 : plan->num_unique() / 2);
    Note(static_cast<uint64_t>(plan->num_missing()));
    const bool is_granted = lab_->Reserve(plan.get());
    Note(is_granted);
    if (!is_granted) {
      if (!held_.empty()) LetGo();
      return;
    }
    KeepVictims(*plan);
    if (random_() % 8 == 0) {
      ++trace_.cancels;
      return lab_->Cancel(plan.get());
    }
    Fill(plan.get());
    Change(plan.get(), keys.size());
    if (is_whole) {
      std::vector<float> out(keys.size() * width() + 1);
      lab_.Gather(plan.get(), out.data());
      NoteBytes(out.data(), out.size() * sizeof(float));
    }
    held_.push_back(std::move(plan));
    while (held_.size() > random_() % 4) LetGo();
  }

  void KeepVictims(const Plan& plan) {
    const auto row_bytes = static_cast<size_t>(lab_->layout().row_bytes());
    const uint8_t* victims = Lab::Victims(plan);
    const auto count = static_cast<size_t>(Lab::NumVictims(plan));
    Note(count);
    if (count != 0) NoteBytes(victims, count * row_bytes);
    for (size_t i = 0; i < count; ++i) Keep(victims + i * row_bytes);
  }

  void Keep(const uint8_t* image) {
    uint64_t key;
    std::memcpy(&key, image, sizeof(key));
    below_[key].assign(image, image + lab_->layout().row_bytes());
  }

  void Fill(Plan* plan) {
    const auto row_bytes = static_cast<size_t>(lab_->layout().row_bytes());
    const auto count = static_cast<size_t>(plan->num_missing());
    std::vector<uint8_t> rows((count + 1) * row_bytes), found(count + 1);
    for (size_t i = 0; i < count; ++i) {
      const auto row = below_.find(Lab::MissingKeys(*plan)[i]);
      Note(Lab::MissingKeys(*plan)[i]);
      found[i] = row != below_.end();
      if (found[i]) std::copy(row->second.begin(), row->second.end(), &rows[i * row_bytes]);
    }
    lab_->Fill(plan, rows.data(), found.data(), 0.25f, random_() % 4 == 0);
  }

  void Change(Plan* plan, size_t num_occurrences) {
    const uint64_t verb = random_() % 4;
    lab_->SetPeriod(static_cast<uint32_t>(random_() % 1000));
    if (verb == 0) {
      Note(static_cast<uint64_t>(lab_->Create(plan, 0.25f)));
    } else if (verb == 1) {
      const auto state_floats = static_cast<size_t>(lab_->layout().state_floats());
      const auto rows = DrawFloats(num_occurrences * width() + 1);
      std::vector<float> state = DrawFloats(num_occurrences * state_floats + 1);
      for (float& value : state) value = value < 0 ? -value : value;
      std::vector<RowStatistics> statistics(num_occurrences + 1);
      for (RowStatistics& one : statistics) {
        one = {static_cast<float>(random_() % 99), static_cast<float>(random_() % 9), 7, 0};
      }
      const bool sets_state = random_() % 2 != 0;
      const bool sets_counts = lab_->layout().has_statistics && random_() % 2 != 0;
      lab_->Assign(plan, rows.data(), sets_state ? state.data() : nullptr,
                   sets_counts ? statistics.data() : nullptr, 0.25f);
    } else {
      const auto gradients = DrawFloats(num_occurrences * width() + 1);
      std::vector<uint8_t> labels(num_occurrences + 1);
      for (uint8_t& label : labels) label = random_() % 3 == 0;
      const uint8_t* given = random_() % 4 == 0 ? nullptr : labels.data();
      HPS_CHECK(lab_->SumGradients(plan, gradients.data(), nullptr, given) == -1);
      lab_->Apply(plan, 0.25f);
    }
    std::vector<uint8_t> images(static_cast<size_t>(plan->window_size() + 1) *
                                static_cast<size_t>(lab_->layout().row_bytes()));
    lab_.ReadRows(plan, images.data());
    NoteBytes(images.data(), images.size());
  }

  void Want() {
    const Keys keys = DrawKeys(drive_.most_keys);
    Plan plan;
    lab_->MakePlan(keys.data(), static_cast<int64_t>(keys.size()), &plan);
    lab_->Want(&plan);
  }

  void Erase() {
    const Keys keys = DrawKeys(20);
    std::set<uint64_t> distinct(keys.begin(), keys.end());
    const Keys unique(distinct.begin(), distinct.end());
    std::vector<uint8_t> presence(unique.size() + 1);
    const auto count = static_cast<int64_t>(unique.size());
    const bool is_done = lab_->Erase(unique.data(), count, presence.data()).ok();
    Note(is_done);
    if (!is_done) return;
    NoteBytes(presence.data(), presence.size());
    for (const uint64_t key : unique) below_.erase(key);
  }

  void Export() {
    const auto row_bytes = static_cast<size_t>(lab_->layout().row_bytes());
    std::vector<uint8_t> rows(100 * row_bytes);
    for (int64_t cursor = 0; cursor >= 0;) {
      const int64_t first = cursor;
      const int64_t count = lab_->Scan(&cursor, true, 100, rows.data());
      NoteBytes(rows.data(), static_cast<size_t>(count) * row_bytes);
      for (int64_t i = 0; i < count; ++i) Keep(&rows[static_cast<size_t>(i) * row_bytes]);
      lab_->MarkClean(first, cursor);
    }
  }

  size_t width() { return static_cast<size_t>(lab_->layout().dim); }

  Lab& lab_;
  const Drive drive_;
  std::mt19937_64 random_;
  Trace trace_;
  std::map<uint64_t, std::vector<uint8_t>> below_;
  std::vector<std::unique_ptr<Plan>> held_;
};

template <class Lab>
Trace RunOn(Lab* lab, const Drive& drive) {
  return Runner<Lab>(lab, drive).Run();
}

void CheckSame(const Trace& expected, const Trace& found) {
  for (size_t i = 0; i < std::min(expected.events.size(), found.events.size()); ++i) {
    if (expected.events[i] != found.events[i]) std::fprintf(stderr, "event %zu differs\n", i);
    HPS_CHECK(expected.events[i] == found.events[i]);
  }
  HPS_CHECK(expected.events.size() == found.events.size());
  HPS_CHECK(expected.rows == found.rows);
  HPS_CHECK(expected.evictions == found.evictions && expected.refusals == found.refusals);
  HPS_CHECK(expected.second_bucket == found.second_bucket && expected.spared == found.spared);
}

LabOptions OptionsOf(OptimizerKind kind, int64_t dim, int64_t buckets,
                     bool has_statistics = false) {
  LabOptions options;
  options.buckets = buckets;
  options.layout = {kind, dim, has_statistics};
  options.initializer.kind = InitializerKind::kNormal;
  options.numbers = {1e-8f, 0.1f, 0.9f, 0.999f, 0.1f, 0.001f, 1.0f, 0.01f, 0.1f};
  return options;
}

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                                    OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam,
                                    OptimizerKind::kFtrl};

void TestLanesTakeTheSlotsOfDramCache(bool is_narrow) {
  int64_t dim = 3;
  for (const OptimizerKind kind : kKinds) {
    LabOptions options = OptionsOf(kind, dim, 8, dim % 2 == 0);
    options.layout.is_narrow = is_narrow;
    if (dim % 4 != 0) options.rounding = Rounding::kStochastic;
    const Drive drive = {9000 + static_cast<uint64_t>(dim), 60, 400, 900};
    DramLab dram(options);
    const Trace expected = RunOn(&dram, drive);
    HPS_CHECK(expected.evictions > 1000 && expected.refusals > 0);
    HPS_CHECK(expected.second_bucket > 10 && expected.cancels > 0 && expected.spared > 10);
    HostLab host(options);
    CheckSame(expected, RunOn(&host.lab(), drive));
    GpuLab<SimtLauncher<4>> four(options, {});
    CheckSame(expected, RunOn(&four, drive));
    GpuLab<SimtLauncher<16>> sixteen(options, {});
    CheckSame(expected, RunOn(&sixteen, drive));
    dim += 13;
  }
  LabOptions options = OptionsOf(OptimizerKind::kRowWiseAdagrad, 20, 8);
  options.layout.is_narrow = is_narrow;
  options.rounding = Rounding::kStochastic;
  const Drive drive = {77, 30, 300, 700};
  DramLab dram(options);
  const Trace expected = RunOn(&dram, drive);
  GpuLab<SimtLauncher<8>> eight(options, {});
  CheckSame(expected, RunOn(&eight, drive));
  GpuLab<SimtLauncher<32>> warp(options, {});
  CheckSame(expected, RunOn(&warp, drive));
}

void TestThreadsTakeTheSlotsOfDramCache() {
  const LabOptions options = OptionsOf(OptimizerKind::kRowWiseAdagrad, 16, 200);
  const Drive drive = {4242, 40, 16000, 20000};
  DramLab dram(options);
  const Trace expected = RunOn(&dram, drive);
  HPS_CHECK(expected.evictions > 20000 && expected.second_bucket > 100);
  for (const int threads : {1, 2, 4}) {
    HostLab host(options, threads);
    CheckSame(expected, RunOn(&host.lab(), drive));
  }
}

// Rounds of churn at load 1.0: what is stored is what a dictionary says, and nothing is lost.
template <class Lab>
void ChurnKeepsEveryRow(Lab& lab, int num_rounds) {
  std::mt19937_64 random(20260718);
  std::map<uint64_t, float> expected;  // weight 0 of every row ever stored, wherever it is
  std::map<uint64_t, std::vector<uint8_t>> below;
  const auto row_bytes = static_cast<size_t>(lab->layout().row_bytes());
  int64_t num_inserted = 0;
  for (int round = 0; round < num_rounds; ++round) {
    Keys keys(1 + random() % 60);
    for (uint64_t& key : keys) key = random() % 600;
    typename Lab::Plan plan;
    HPS_CHECK(Take(lab, keys, &plan));
    const uint8_t* victims = Lab::Victims(plan);
    for (int64_t i = 0; i < Lab::NumVictims(plan); ++i, victims += row_bytes) {
      uint64_t key;
      std::memcpy(&key, victims, sizeof(key));
      below[key].assign(victims, victims + row_bytes);
    }
    const auto num_missing = static_cast<size_t>(plan.num_missing());
    num_inserted += plan.num_missing();
    std::vector<uint8_t> rows((num_missing + 1) * row_bytes), found(num_missing + 1);
    for (size_t i = 0; i < num_missing; ++i) {
      const auto row = below.find(Lab::MissingKeys(plan)[i]);
      if (row == below.end()) continue;
      found[i] = 1;
      std::copy(row->second.begin(), row->second.end(), &rows[i * row_bytes]);
    }
    lab->Fill(&plan, rows.data(), found.data(), 1.0f, false);
    // Small whole numbers: any order of adding gives the same.
    std::vector<float> gradients(keys.size() * 4);
    for (size_t i = 0; i < keys.size(); ++i) {
      gradients[4 * i] = static_cast<float>(random() % 5);
      expected[keys[i]] -= gradients[4 * i];
    }
    HPS_CHECK(lab->SumGradients(&plan, gradients.data()) == -1);
    lab->Apply(&plan, 1.0f);
    std::vector<float> out(keys.size() * 4);
    lab.Gather(&plan, out.data());
    for (size_t i = 0; i < keys.size(); ++i) HPS_CHECK(out[4 * i] == expected[keys[i]]);
    lab->Release(&plan);
    HPS_CHECK(lab.num_rows() + lab.counters().evictions == num_inserted);
  }
  HPS_CHECK(lab.num_rows() == lab->shape().num_slots());  // load 1.0
  HPS_CHECK(lab.counters().evictions > 10 * num_rounds && lab.counters().refusals == 0);
  std::set<uint64_t> here;
  for (const auto& [slot, row] : lab.StoredRows()) {
    uint64_t key;
    std::memcpy(&key, row.data(), sizeof(key));
    HPS_CHECK(here.insert(key).second);  // never in two slots
    float weight;
    std::memcpy(&weight, row.data() + kRowHeaderBytes, sizeof(weight));
    HPS_CHECK(weight == expected[key]);
  }
}

}  // namespace
}  // namespace hps

int main() {
  using namespace hps;  // NOLINT: a test's main
  std::puts("seeds 9003 to 9055, 77, 4242, 20260718");
  TestLanesTakeTheSlotsOfDramCache(false);
  TestLanesTakeTheSlotsOfDramCache(true);
  TestThreadsTakeTheSlotsOfDramCache();
  LabOptions options;
  options.buckets = 4;
  options.initializer = {InitializerKind::kConstant, 0.0f, 0.0f, 5};
  HostLab host(options);
  ChurnKeepsEveryRow(host.lab(), 1000);
  GpuLab<SimtLauncher<16>> lanes(options, {});
  ChurnKeepsEveryRow(lanes, 1000);
  std::puts("gpu_random_test: all passed");
  return 0;
}
