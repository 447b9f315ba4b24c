// ForwardingFiles: a file layer that hands every call on to another one; tests override what they
// watch or change.
//
// Above it: native tests. Below it: csrc/files/file_system.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace hps {

class ForwardingFiles : public FileSystem {
 public:
  explicit ForwardingFiles(FileSystem* files) : files_(files) {}

  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override {
    return files_->Open(path, mode, file);
  }
  Status Rename(const std::string& source, const std::string& target) override {
    return files_->Rename(source, target);
  }
  Status SyncFolder(const std::string& path) override { return files_->SyncFolder(path); }
  Status Unlink(const std::string& path) override { return files_->Unlink(path); }
  Status List(const std::string& path, std::vector<std::string>* names) override {
    return files_->List(path, names);
  }
  Status CreateFolder(const std::string& path) override { return files_->CreateFolder(path); }
  bool Exists(const std::string& path) override { return files_->Exists(path); }

 protected:
  FileSystem* const files_;
};

}  // namespace hps
