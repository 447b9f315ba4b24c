// From the numbers that shares gave their keys to those of the whole batch, compiled once an
// instruction set.
//
// Above it: key_loops.h. Below it: key_share.h. Which occurrences are a key's first is known, so a
// key's number in the batch is how many of these come before its own: a bit a position, and the
// bits before each word counted.
#pragma once

#include "batch/key_loops.h"

namespace hps {
inline namespace HPS_BUILD {

// Positions of first occurrences, into joint_ids for the time being, and as bits. Each is written
// down before it is known that it is one.
inline void MarkFirsts(KeyShare* share, const JointIds& joint, int number) {
  uint32_t* const firsts = share->joint_ids;
  const uint32_t* const ids = share->ids;
  const uint32_t* const positions = share->scan_positions;
  int64_t num_firsts = 0;
  for (int64_t i = 0; i < share->num_occurrences; ++i) {
    firsts[num_firsts] = positions[i];
    num_firsts += (ids[i] & kFirstOfKey) != 0;
  }
  uint64_t* const bits = joint.firsts + number * joint.num_words;
  __builtin_memset(bits, 0, static_cast<uint64_t>(joint.num_words) * sizeof(uint64_t));
  for (int64_t i = 0; i < num_firsts; ++i) bits[firsts[i] / 64] |= uint64_t{1} << firsts[i] % 64;
}

inline int64_t RankFirsts(const JointIds& joint) {
  int64_t rank = 0;
  for (int64_t word = 0; word < joint.num_words; ++word) {
    uint64_t bits = 0;
    for (int i = 0; i < joint.num_shares; ++i) bits |= joint.firsts[i * joint.num_words + word];
    joint.all_firsts[word] = bits;
    joint.ranks[word] = static_cast<uint32_t>(rank);
    rank += __builtin_popcountll(bits);
  }
  return rank;
}

inline void Join(KeyShare* share, const JointIds& joint) {
  uint32_t* const joint_ids = share->joint_ids;
  for (int64_t id = 0; id < share->num_unique; ++id) {
    const uint32_t position = joint_ids[id];
    const uint64_t before = joint.all_firsts[position / 64] & ((uint64_t{1} << position % 64) - 1);
    joint_ids[id] =
        joint.ranks[position / 64] + static_cast<uint32_t>(__builtin_popcountll(before));
    joint.unique_keys[joint_ids[id]] = share->keys[id];
  }
  uint32_t* const ids = share->ids;
  for (int64_t i = 0; i < share->num_occurrences; ++i) {
    const uint32_t joint_id = joint_ids[ids[i] & ~kFirstOfKey];
    ids[i] = joint_id | (ids[i] & kFirstOfKey);
    joint.inverse[share->scan_positions[i]] = joint_id;
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
