// CRC32C in every form that this processor can run: the published values, and the plain form's at
// all lengths, seeds, alignments and divisions, with copies and without.
//
// Above it: CTest. Below it: csrc/files/crc32c.h. Memory is of the exact size, so that the
// address sanitizer sees a byte too many.
#include "files/crc32c.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"

namespace hps {
namespace {

using crc32c::Form;
using crc32c::kPlain;

constexpr size_t kLongest = 20000;

struct Published {
  std::string bytes;
  uint32_t checksum;
};

// RFC 3720, appendix B.4, and the check value that catalogues of checksums give.
std::vector<Published> PublishedValues() {
  std::string up;
  std::string down;
  for (int byte = 0; byte < 32; ++byte) {
    up += static_cast<char>(byte);
    down += static_cast<char>(31 - byte);
  }
  std::string read_command(48, '\0');  // an iSCSI SCSI Read (10)
  read_command[0] = 0x01;
  read_command[1] = static_cast<char>(0xC0);
  read_command[16] = 0x14;
  read_command[22] = 0x04;
  read_command[27] = 0x14;
  read_command[31] = 0x18;
  read_command[32] = 0x28;
  read_command[40] = 0x02;
  return {{"", 0},
          {"123456789", 0xE3069283},
          {std::string(32, '\0'), 0x8A9136AA},
          {std::string(32, '\xFF'), 0x62A8AB43},
          {up, 0x46DD794E},
          {down, 0x113FDB5C},
          {read_command, 0xD9963A56}};
}

std::vector<char> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void TestPublishedValues(const Form& form) {
  for (const Published& known : PublishedValues()) {
    const char* bytes = known.bytes.data();
    const size_t size = known.bytes.size();
    HPS_CHECK(form.extend(0, bytes, size) == known.checksum);
    const uint32_t seed = 0;
    uint32_t checksum = 1;
    form.many({.pieces = &bytes, .seeds = &seed, .size = size, .count = 1}, &checksum);
    HPS_CHECK(checksum == known.checksum);
  }
}

std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t size = 0; size <= 1300; ++size) lengths.push_back(size);
  for (const size_t size : {2047, 2048, 2049, 6143, 6144, 6145, 12288, 12295, 20000}) {
    lengths.push_back(size);
  }
  return lengths;
}

void TestEveryLengthAndAlignment(const Form& form) {
  const std::vector<char> bytes = RandomBytes(kLongest + 64, 1);
  std::mt19937_64 random(2);
  for (const size_t size : Lengths()) {
    const auto seed = static_cast<uint32_t>(random());
    const char* data = bytes.data() + random() % 64;
    HPS_CHECK(form.extend(seed, data, size) == kPlain.extend(seed, data, size));
    const size_t split = size == 0 ? 0 : random() % size;
    const uint32_t first = form.extend(seed, data, split);
    HPS_CHECK(form.extend(first, data + split, size - split) == kPlain.extend(seed, data, size));
  }
  for (size_t shift = 0; shift < 64; ++shift) {
    for (const size_t size : {8, 60, 64, 200, 272, 1024, 1037}) {
      const char* data = bytes.data() + shift;
      HPS_CHECK(form.extend(7, data, size) == kPlain.extend(7, data, size));
    }
  }
}

// Pieces at random places of one block of bytes, and copies that each end where their memory ends.
void TestManyPieces(const Form& form, size_t size, size_t count, bool copies) {
  std::mt19937_64 random(size * 16 + count);
  const std::vector<char> bytes = RandomBytes(2 * size + 100, random());
  std::vector<const char*> pieces;
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<char*> targets;
  std::vector<uint32_t> seeds;
  for (size_t i = 0; i < count; ++i) {
    pieces.push_back(bytes.data() + random() % (bytes.size() - size + 1));
    const size_t shift = random() % 64;
    memory.emplace_back(new char[shift + size]());
    targets.push_back(memory.back().get() + shift);
    seeds.push_back(static_cast<uint32_t>(random()));
  }
  std::vector<uint32_t> checksums(count);
  form.many({.pieces = pieces.data(),
             .copies = copies ? targets.data() : nullptr,
             .seeds = seeds.data(),
             .size = size,
             .count = count},
            checksums.data());
  for (size_t i = 0; i < count; ++i) {
    HPS_CHECK(checksums[i] == kPlain.extend(seeds[i], pieces[i], size));
    if (copies) HPS_CHECK(std::memcmp(targets[i], pieces[i], size) == 0);
    for (const char* byte = memory[i].get(); byte < targets[i]; ++byte) HPS_CHECK(*byte == 0);
  }
}

void TestASeedOfEveryBit(const Form& form) {
  const std::vector<char> bytes = RandomBytes(1024, 3);
  for (const size_t size : {0, 3, 64, 1024}) {
    for (int bit = 0; bit < 32; ++bit) {
      const uint32_t seed = uint32_t{1} << bit;
      HPS_CHECK(form.extend(seed, bytes.data(), size) == kPlain.extend(seed, bytes.data(), size));
    }
  }
}

void TestJoinedMessages() {
  const std::vector<char> bytes = RandomBytes(3000, 4);
  for (const size_t split : {0, 1, 8, 1000, 2999, 3000}) {
    const uint32_t first = Crc32c(0, bytes.data(), split);
    const uint32_t second = Crc32c(0, bytes.data() + split, bytes.size() - split);
    HPS_CHECK(Crc32cJoined(first, second, bytes.size() - split) ==
              kPlain.extend(0, bytes.data(), bytes.size()));
  }
}

void TestWhatIsChosenAgrees() {
  const std::vector<char> bytes = RandomBytes(1024, 5);
  const char* piece = bytes.data();
  const uint32_t seed = 9;
  uint32_t checksum = 0;
  Crc32cMany({.pieces = &piece, .seeds = &seed, .size = bytes.size(), .count = 1}, &checksum);
  HPS_CHECK(checksum == Crc32c(9, piece, bytes.size()));
  HPS_CHECK(checksum == kPlain.extend(9, piece, bytes.size()));
}

}  // namespace
}  // namespace hps

int main() {
  const std::vector<const hps::crc32c::Form*> forms = hps::crc32c::Forms();
  HPS_CHECK(!forms.empty() && forms.back() == &hps::crc32c::kPlain);
  for (const hps::crc32c::Form* form : forms) {
    hps::TestPublishedValues(*form);
    hps::TestEveryLengthAndAlignment(*form);
    for (const bool copies : {false, true}) {
      for (size_t size = 0; size <= 1300; size += size < 200 ? 1 : 37) {
        for (const size_t count : {0, 1, 2, 3, 4, 11}) {
          hps::TestManyPieces(*form, size, count, copies);
        }
      }
    }
    hps::TestASeedOfEveryBit(*form);
    std::printf("crc32c, %s: ok\n", form->name);
  }
  hps::TestJoinedMessages();
  hps::TestWhatIsChosenAgrees();
  return 0;
}
