// Which new keys come by a row: the same keys, rows and records in dram_cache, on host threads and
// by the device's own text on emulated lanes.
//
// Above it: CTest. Below it: gpu_cache_lab.h.
#include "gpu_cache_lab.h"

// The lab comes first.
#include "gpu_cache/admission_body.h"
#include "table/life_table.h"

namespace hps {
namespace {

constexpr int64_t kDim = 4;

LabOptions OptionsOf(int64_t dim, uint64_t stream) {
  LabOptions options;
  options.buckets = 8;
  options.layout = {OptimizerKind::kAdagrad, dim, true};
  options.initializer.stream = stream;
  if (dim == 0) options.layout.kind = OptimizerKind::kSgd;
  return options;
}

// What can be seen of a run.
struct Seen {
  std::vector<int64_t> numbers;
  std::map<uint64_t, std::vector<uint8_t>> rows, records;

  bool operator==(const Seen&) const = default;
};

template <class Lab>
std::map<uint64_t, std::vector<uint8_t>> ByKey(Lab& lab) {
  std::map<uint64_t, std::vector<uint8_t>> rows;
  for (const auto& [slot, row] : lab.StoredRows()) rows[KeyOfRow(row.data())] = row;
  return rows;
}

// Pushes batches of keys by one rule after the other: of most keys some occur often.
template <class Lab>
Seen Run(Lab& lab, Lab& records) {
  const LifeTable of_rows({.unseen = 9, .decay = 0.5f, .nonclick = 0.25f, .click = 1.0f});
  const LifeTable of_records({.unseen = 3, .min_score = 0.5f, .nonclick = 1.0f, .click = 1.0f});
  lab->SetRules(of_rows.rules());
  records->SetRules(of_records.rules());
  std::mt19937_64 random(7);
  Seen seen;
  for (uint32_t step = 0; step < 24; ++step) {
    lab->SetPeriod(step / 4);
    records->SetPeriod(step / 4);
    Keys keys(60);
    for (uint64_t& key : keys) key = MixKey(random() % (random() % 4 == 0 ? 8 : 100));
    std::vector<uint8_t> labels(keys.size());
    std::vector<float> gradients(keys.size() * kDim);
    for (uint8_t& label : labels) label = random() % 2;
    for (float& value : gradients) value = static_cast<float>(random() % 2001) * 0.001f - 1.0f;
    typename Lab::Plan plan, beside;
    HPS_CHECK(Pin(lab, keys, &plan));
    const bool is_labelled = step % 3 != 0;
    HPS_CHECK(lab->SumGradients(&plan, gradients.data(), nullptr,
                                is_labelled ? labels.data() : nullptr) < 0);
    if (step % 4 == 3) {
      HPS_CHECK(lab->ListFresh(&plan, nullptr) == 0);
      lab->AdmitDrawn(&plan, step, 0.3);
    } else {
      seen.numbers.push_back(lab->ListFresh(&plan, records.operator->()));
      HPS_CHECK(Pin(records, keys, &beside));
      HPS_CHECK(lab->ListFresh(&plan, records.operator->()) == 0);
      if (step % 4 == 2) {
        lab->AdmitScored(&plan, *records.operator->(), 1.25f, of_rows.rules());
      } else {
        lab->AdmitCounted(&plan, records.operator->(), 3.0f);
      }
    }
    seen.numbers.push_back(plan.num_listed());
    lab->Apply(&plan, 0.1f);
    for (const int64_t count : {lab.num_rows(), lab.num_fresh(), lab.num_created(), lab.num_dirty(),
                                records.num_rows(), records.num_dirty()}) {
      seen.numbers.push_back(count);
    }
    lab->Abandon(&plan);
    records->Abandon(&beside);
    // Without a rule an update makes rows of all keys.
    if (step == 20) {
      HPS_CHECK(Pin(lab, Keys{1, 2, 3}, &plan));
      HPS_CHECK(lab->SumGradients(&plan, gradients.data()) < 0);
      const int64_t before = lab.num_rows();
      lab->Apply(&plan, 0.1f);
      HPS_CHECK(lab.num_rows() == before + 3);
      lab->Abandon(&plan);
    }
  }
  seen.rows = ByKey(lab);
  seen.records = ByKey(records);
  return seen;
}

void KeysAreAdmittedAlikeEverywhere() {
  const LabOptions options = OptionsOf(kDim, 5), of_records = OptionsOf(0, 6);
  DramLab dram(options), dram_records(of_records);
  const Seen expected = Run(dram, dram_records);
  HPS_CHECK(expected.rows.size() > 50 && expected.records.size() > 50);
  HostLab host(options), host_records(of_records);
  HPS_CHECK(Run(host.lab(), host_records.lab()) == expected);
  HostLab threads(options, 3), thread_records(of_records, 3);
  HPS_CHECK(Run(threads.lab(), thread_records.lab()) == expected);
  GpuLab<SimtLauncher<4>> four(options, {}), four_records(of_records, {});
  HPS_CHECK(Run(four, four_records) == expected);
  GpuLab<SimtLauncher<16>> sixteen(options, {}), sixteen_records(of_records, {});
  HPS_CHECK(Run(sixteen, sixteen_records) == expected);
}

// A record whose row has not arrived is as good as missing.
template <class Lab>
void RecordsOnTheirWayAreMissing(Lab& lab, Lab& records) {
  const Keys keys = {11, 12, 13};
  typename Lab::Plan plan, beside;
  HPS_CHECK(Pin(lab, keys, &plan));
  HPS_CHECK(lab->ListFresh(&plan, records.operator->()) == 3);
  HPS_CHECK(Take(records, Some(keys, 0, 2), &beside));
  HPS_CHECK(lab->ListFresh(&plan, records.operator->()) == 3);
  FillFresh(records, &beside);
  HPS_CHECK(lab->ListFresh(&plan, records.operator->()) == 1);
  lab->Abandon(&plan);
  records->Abandon(&beside);
}

void RecordsOnTheirWayAreMissingEverywhere() {
  const LabOptions options = OptionsOf(kDim, 5), of_records = OptionsOf(0, 6);
  DramLab dram(options), dram_records(of_records);
  RecordsOnTheirWayAreMissing(dram, dram_records);
  HostLab host(options), host_records(of_records);
  RecordsOnTheirWayAreMissing(host.lab(), host_records.lab());
  GpuLab<SimtLauncher<16>> lanes(options, {}), lane_records(of_records, {});
  RecordsOnTheirWayAreMissing(lanes, lane_records);
}

}  // namespace
}  // namespace hps

int main() {
  hps::KeysAreAdmittedAlikeEverywhere();
  hps::RecordsOnTheirWayAreMissingEverywhere();
  return 0;
}
