// Every kernel of gpu_cache: a body XOne(group, args, i) for work item i, one text for the host
// build and the device.
//
// Above it: gpu_cache.cc, which loops over i; the CUDA launcher, whose wrappers stride over i.
// Below it: the headers it includes. Bodies with a group of 1 must be run by one lane. "any" may be
// any size of DeviceGroup; 4 is kRowLanes, which row arithmetic wants. N, M, L as in cache_args.h;
// "bound" is an upper bound of a number that only the device knows, and what lies above it returns.
//
// | kernel             | Args               | what it does                              | items |
// group | | ------------------ | ------------------ | ----------------------------------------- |
// --------- | ----- | | PlaceKeyOne        | DeduplicateArgs    | finds each key's entry in the id
// table    | L         | 1     | | FlagFirstOne       | DeduplicateArgs    | flags first
// occurrences; then prefix sum  | L         | 1     | | NumberKeyOne       | DeduplicateArgs    |
// inverse, unique_keys, num_unique          | L         | 1     | | BeginFindOne       | FindArgs
// | sets the window                           | 1         | 1     | | FindSlotOne        | FindArgs
// | slots, stamps, missing flags; prefix sum  | bound     | any   | | ListMissingOne     | FindArgs
// | missing, missing_keys, num_missing        | bound     | 1     | | TickOne            | FindArgs
// | hits, misses, the clock                   | 1         | 1     | | SweepOne           | FindArgs
// | holds back old stamps of one bucket       | buckets/64| any   | | LookupOne          |
// LookupArgs         | find and gather without a plan            | L         | any   | |
// TickLookupOne      | LookupArgs         | hits and the clock after LookupOne        | 1         |
// 1     | | BeginReserveOne    | ReserveArgs        | which rounds can help; zeroes             | 1
// | 1     | | PinOne             | ReserveArgs        | pins rows found, readies entries          |
// bound     | 1     | | CountInBucketOne   | ReserveArgs        | groups keys by bucket: lengths |
// bound     | any   | | StartListOne       | ReserveArgs        | ...: where lists start | bound |
// 1     | | PutIntoListOne     | ReserveArgs        | ...: the lists                            |
// bound     | 1     | | PlaceBucketOne     | ReserveArgs        | one round in one bucket | bound
// | any   | | SettleReserveOne   | ReserveArgs        | granted or refused; pin and pending counts|
// 1         | 1     | | UndoReserveOne     | ReserveArgs        | takes back what a refused reserve
// took    | bound     | 1     | | NoteVictimOne      | ReserveArgs        | spill counts, dirty
// victims; prefix sum   | bound     | 1     | | CommitEntryOne     | ReserveArgs        | copies
// dirty victims, writes new keys     | bound     | any   | | CancelOne          | ReserveArgs |
// takes back a granted reserve              | bound     | 1     | | ReleaseOne         |
// ReserveArgs        | drops a window's pins                     | bound     | 1     | | FillRowOne
// | FillArgs           | publishes missing rows, found or fresh    | bound     | 4     | |
// GatherOne          | GatherArgs         | embeddings to all positions               | L         |
// any   | | PoolOne            | PoolArgs           | sums or means of bags                     |
// bags      | any   | | ReadRowOne         | ImagesArgs         | rows of the window to images |
// bound     | any   | | WriteRowOne        | ImagesArgs         | images to rows, dirty and stored
// | bound     | any   | | InitialWeightsOne  | InitialWeightsArgs | what absent keys read as | keys
// | 4     | | FindStartOne       | SumArgs            | starts, from occurrences sorted by id     |
// L         | 1     | | CountRunsOne       | SumArgs            | runs of hot keys; then prefix sum
// | bound     | 1     | | SumRunOne          | SumArgs            | keys of one run; runs of hot
// keys         | bound+hot | any   | | SumBlockOne        | SumArgs            | blocks of 64 runs
// | hot       | any   | | CombineRunsOne     | SumArgs            | hot keys | bound     | any   |
// | NoteFailureOne     | NoteFailureArgs    | a sum was not finite: stops updates       | 1 | 1 |
// | ApplyOne<kind>     | ApplyArgs          | the optimizer once a key                  | bound | 4
// | | FindLastOne        | AssignArgs         | a key's last occurrence                   | L | 1 |
// | AssignOne          | AssignArgs         | rows set outright                         | bound | 4
// | | CreateOne          | CreateArgs         | fresh rows become stored                  | bound
// | 4     | | ContainsOne        | KeysArgs           | presence                                  |
// keys      | any   | | FindErasedOne      | KeysArgs           | presence, slots, whether one is
// pinned    | keys      | any   | | EraseOne           | KeysArgs           | drops keys | keys | 1
// | | FlagWantedOne      | ScanArgs           | wanted slots; then prefix sum             | count
// | 1     | | CopyWantedOne      | ScanArgs           | copies rows, marks dirty ones exported    |
// count     | any   | | MarkCleanOne       | ScanArgs           | exported rows are clean | count
// | 1     |
//
// Between batches: id_table all ones before PlaceKeyOne; last zero before FindLastOne; first_pinned
// all ones before FindErasedOne; num_missing of LookupArgs zero. bucket_lists, clock and counters
// are zeroed once. Prefix sums are inclusive, in place, over as many items as the kernel before
// had.
#pragma once

#include "gpu_cache/deduplicate.h"
#include "gpu_cache/find.h"
#include "gpu_cache/moves.h"
#include "gpu_cache/reserve_kernels.h"
#include "gpu_cache/scan_kernels.h"
#include "gpu_cache/updates.h"
