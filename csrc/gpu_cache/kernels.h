// Every kernel of gpu_cache: a body XOne(group, args, i) for work item i, one text for the host
// build and the device.
//
// Above it: gpu_cache.cc, which loops over i; the CUDA launcher, whose wrappers stride over i.
// Below it: the headers it includes. Two things the host build does in another order, with the same
// result (host_batch.h): PlaceKey to NumberKey, and SpreadBag to SumRun. Bodies with a group
// of 1 must be run by one lane. "any" may be any size of DeviceGroup; 4 is kRowLanes, which row
// arithmetic wants. N, M, L as in cache_args.h; "bound" is an upper bound of a number that only the
// device knows, and what lies above it returns. The body of Pin is PinOne(group, const ReserveArgs&
// args, i), and so on:
//
// clang-format off
// kernel          Args            what it does                                items       group
// --------------  --------------  ------------------------------------------  ----------  -----
// BeginPlan       Deduplicate     id table empty, flags and numbers zero      id entries  1
// PlaceKey        Deduplicate     keys' entries in the id table; who is first L           1
// ListFirst       Deduplicate     ranks of firsts, unique_keys, num_unique    L/32        any
// NumberKey       Deduplicate     inverse                                     L           1
// FindSlot        Find            window, slots, stamps, missing flags        bound       any
// ListMissing     Find            missing keys, numbers, hits, the clock      bound/32    any
// EndFind         Find            sweeps, clears flags, pins if all is here   see there   any
// Want            Find            marks a batch's keys as wanted              bound       any
// Pin             Reserve         pins rows found, lists missing keys         window      1
// Place<round>    Reserve         one round in one bucket                     missing     any
// GroupByEmptier  Reserve         lists by the emptier bucket                 missing     any
// CommitEntry     Reserve         granted or refused; victims and new keys    bound       any
// Cancel          Reserve         takes back a granted reserve                bound       1
// Release         Reserve         drops a window's pins                       bound       1
// FillRow         Fill            publishes missing rows, found or fresh      bound       4
// Gather          Gather          embeddings to all positions                 L           any
// Pool            Pool            sums or means of bags                       bags        any
// ReadRow         Images          rows of the window to images                bound       any
// InitialWeights  InitialWeights  what absent keys read as                    keys        4
// SpreadBag       Sum             counts occurrences, looks at gradients      bags or L   any
// PlaceTerms      Sum             places for the terms of keys                see there   any
// PutBag          Sum             terms to places, as they arrived            bags or L   any
// OrderTerms      Sum             terms of a key in order                     see there   any
// SumRun          Sum             hot keys; what is wild is looked at         see there   any
// Try<kind>       Try             notes what an update would not leave finite bound       4
// NoteFailure     NoteFailure     a sum was not finite: stops updates         1           any
// Apply<kind>     Apply           the optimizer once a key                    bound       4
// FindLast        Assign          a key's last occurrence                     L           1
// Assign          Assign          rows set outright                           bound       4
// Create          Create          fresh rows become stored                    bound       4
// Contains        Keys            presence                                    keys        any
// FindErased      Keys            presence, slots, whether one is pinned      keys        any
// Erase           Keys            drops keys                                  keys        1
// FlagScanned     Scan            slots to be copied; then prefix sum         count       1
// CopyScanned     Scan            copies rows, marks dirty ones exported      count       any
// MarkClean       Scan            exported rows are clean                     count       1
// NameOwner       Divide          owners of distinct keys; then a sort        L           1
// GroupKey        Divide          keys owner after owner, told to the host    L or ranks  1
// JudgeSum        Judge           sums of a rank, and what must not travel    N           any
// MarkLast        Send            whose rest a slot is to keep                rows        1
// SendRow         Send            rows or sums to messages                    rows        any
// ReceiveRow      Receive         messages to rows                            rows        any
// clang-format on
//
// Between batches: last zero before FindLastOne; first_pinned
// all ones before FindErasedOne. bucket_lists, clock and counters are zeroed once. Prefix sums are
// inclusive, in place, over as many items as the kernel before had.
#pragma once

#include "gpu_cache/deduplicate.h"
#include "gpu_cache/find.h"
#include "gpu_cache/moves.h"
#include "gpu_cache/peers.h"
#include "gpu_cache/reserve_kernels.h"
#include "gpu_cache/scan_kernels.h"
#include "gpu_cache/updates.h"
