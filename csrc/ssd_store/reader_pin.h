// ReaderPin: a file by which a read-only open tells the writer which files it needs.
//
// Above it: store, verify. Below it: file_system. The reader holds a shared lock on its pin for as
// long as it lives, so a dead reader's pin is known by a lock that is free. A pin is made before
// the reader looks at the manifest, and says at first that everything is needed; the writer looks
// at the pins after its manifest is durable. So whichever comes first, nothing a reader has chosen
// is removed.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace hps {

class ReaderPin {
 public:
  // Makes a pin that names everything. *pin stays empty where the medium is read-only: nothing can
  // be removed there.
  static Status Create(FileSystem* files, const std::string& folder,
                       std::unique_ptr<ReaderPin>* pin);
  ~ReaderPin();

  // In a forked child: the pin is the parent's and stays.
  void Abandon() { file_.reset(); }

  // From now on only these files are needed.
  Status Narrow(uint64_t checkpoint, const std::vector<uint64_t>& file_numbers);

 private:
  ReaderPin(FileSystem* files, std::unique_ptr<File> file)
      : files_(files), file_(std::move(file)) {}

  FileSystem* files_;
  std::unique_ptr<File> file_;
};

// What living readers need.
struct PinnedFiles {
  bool everything = false;
  std::set<uint64_t> numbers;
  std::vector<std::string> holders;  // "process 123 (checkpoint 7)"
};

// Reads the pins of living readers and removes those of dead ones.
Status ReadPins(FileSystem* files, const std::string& folder, PinnedFiles* pinned);

}  // namespace hps
