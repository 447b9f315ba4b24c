// LockFolder: makes this process the one that may write a store's folder.
//
// Above it: store_open, cloner. Below it: file_system.
#pragma once

#include <memory>
#include <string>

#include "files/file_system.h"

namespace hps {

// Takes the folder's lock and that of its file LOCK, which it fills with "<pid> <host>". kStore
// with EAGAIN: another process holds it, named in the error.
Status LockFolder(FileSystem* files, const std::string& folder, std::unique_ptr<File>* lock);

}  // namespace hps
