// HPS_GPU_KERNELS, HPS_TABLES_KERNELS: every kernel by name, its body, the struct it is given, and
// how many lanes of a warp work on one of its items. Those of the second list work on the items of
// several tables in one launch: they are given Tables, and a struct of each table by that.
//
// Above it: kernels.cu, which makes the device's kernels of the list, and
// csrc/bindings/gpu_kernels.cc, which tells Python about them. Below it: kernels.h. One lane an
// item where an item is a number or two; four where row arithmetic demands it, for looking up
// (four loads of 16 digests), and where many rows have to be under way (a gather, four loads a
// lane); eight where whole rows move, 128 neighbouring bytes at a time; sixteen for a bucket's
// choices.
#pragma once

#include "gpu_cache/kernels.h"

// clang-format off
#define HPS_GPU_KERNELS(X)                                                       \
  X(Want, WantOne, FindArgs, 4)                                                  \
  X(Gather, GatherOne, GatherArgs, 4)                                            \
  X(ReadRow, ReadRowOne, ImagesArgs, 8)                                          \
  X(InitialWeights, InitialWeightsOne, InitialWeightsArgs, 4)                    \
  X(NoteFailure, NoteFailureOne, NoteFailureArgs, 16)                            \
  X(FindLast, FindLastOne, AssignArgs, 1)                                        \
  X(Assign, AssignOne, AssignArgs, 4)                                            \
  X(Create, CreateOne, CreateArgs, 4)                                            \
  X(FindErased, FindErasedOne, KeysArgs, 4)                                      \
  X(Erase, EraseOne, KeysArgs, 1)                                                \
  X(FlagScanned, FlagScannedOne, ScanArgs, 1)                                    \
  X(CopyScanned, CopyScannedOne, ScanArgs, 8)                                    \
  X(MarkClean, MarkCleanOne, ScanArgs, 1)

#define HPS_TABLES_KERNELS(X)                                                         \
  X(BeginPlan, BeginPlanOne, DeduplicateArgs, 1)                                      \
  X(PlaceKey, PlaceKeyOne, DeduplicateArgs, 1)                                        \
  X(ListFirst, ListFirstOne, DeduplicateArgs, 8)                                      \
  X(NumberKey, NumberKeyOne, DeduplicateArgs, 1)                                      \
  X(FindSlot, FindSlotOne, FindArgs, 4)                                               \
  X(ListMissing, ListMissingOne, FindArgs, 8)                                         \
  X(EndFind, EndFindOne, FindArgs, 16)                                                \
  X(Pin, PinOne, ReserveArgs, 1)                                                      \
  X(PlaceFirst, PlaceOne<kFirst>, ReserveArgs, 16)                                    \
  X(GroupByEmptier, GroupByEmptierOne, ReserveArgs, 4)                                \
  X(PlaceEmptier, PlaceOne<kEmptier>, ReserveArgs, 16)                                \
  X(PlaceOther, PlaceOne<kOther>, ReserveArgs, 16)                                    \
  X(PlaceVictimFirst, PlaceOne<kVictimFirst>, ReserveArgs, 16)                        \
  X(PlaceVictimSecond, PlaceOne<kVictimSecond>, ReserveArgs, 16)                      \
  X(CommitEntry, CommitEntryOne, ReserveArgs, 8)                                      \
  X(Cancel, CancelOne, ReserveArgs, 1)                                                \
  X(FillRow, FillRowOne, FillArgs, 4)                                                 \
  X(Contains, ContainsOne, KeysArgs, 4)                                               \
  X(Release, ReleaseOne, ReserveArgs, 1)                                              \
  X(Pool, PoolOne, PoolArgs, 8)                                                       \
  X(SpreadBag, SpreadBagOne, SumArgs, 4)                                              \
  X(PlaceTerms, PlaceTermsOne, SumArgs, 8)                                            \
  X(PutBag, PutBagOne, SumArgs, 4)                                                    \
  X(OrderTerms, OrderTermsOne, SumArgs, 8)                                            \
  X(SumRun, SumRunOne, SumArgs, 8)                                                    \
  X(NameOwner, NameOwnerOne, DivideArgs, 1)                                           \
  X(GroupKey, GroupKeyOne, DivideArgs, 1)                                             \
  X(JudgeSum, JudgeSumOne, JudgeArgs, 8)                                              \
  X(MarkLast, MarkLastOne, SendArgs, 1)                                               \
  X(SendRow, SendRowOne, SendArgs, 8)                                                 \
  X(ReceiveRow, ReceiveRowOne, ReceiveArgs, 8)                                        \
  X(TrySgd, TryOne<OptimizerKind::kSgd>, TryTermsArgs, 4)                             \
  X(TryAdagrad, TryOne<OptimizerKind::kAdagrad>, TryTermsArgs, 4)                     \
  X(TryRowWiseAdagrad, TryOne<OptimizerKind::kRowWiseAdagrad>, TryTermsArgs, 4)       \
  X(TryAdam, TryOne<OptimizerKind::kAdam>, TryTermsArgs, 4)                           \
  X(TryFtrl, TryOne<OptimizerKind::kFtrl>, TryTermsArgs, 4)                           \
  X(ApplySgd, ApplyOne<OptimizerKind::kSgd>, ApplyTermsArgs, 4)                       \
  X(ApplyAdagrad, ApplyOne<OptimizerKind::kAdagrad>, ApplyTermsArgs, 4)               \
  X(ApplyRowWiseAdagrad, ApplyOne<OptimizerKind::kRowWiseAdagrad>, ApplyTermsArgs, 4) \
  X(ApplyAdam, ApplyOne<OptimizerKind::kAdam>, ApplyTermsArgs, 4)                     \
  X(ApplyFtrl, ApplyOne<OptimizerKind::kFtrl>, ApplyTermsArgs, 4)
// clang-format on
