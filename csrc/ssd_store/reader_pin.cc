// ReaderPin: see reader_pin.h. A pin is text: "checkpoint <id>", "files <n> <number>...", "end".
//
// Above it: reader_pin.h. Below it: file_system, format.
#include "ssd_store/reader_pin.h"

#include <unistd.h>

#include <cerrno>
#include <random>
#include <sstream>

#include "ssd_store/format.h"

namespace hps {
namespace {

constexpr int kMostAttempts = 100;
constexpr char kPinPrefix[] = "reader-";

// False if the text is not whole: its reader is still choosing.
bool ParsePin(const std::string& text, uint64_t* checkpoint, std::vector<uint64_t>* numbers) {
  std::istringstream in(text);
  std::string word;
  uint64_t count = 0;
  if (!(in >> word >> *checkpoint) || word != "checkpoint") return false;
  if (!(in >> word >> count) || word != "files") return false;
  for (uint64_t number = 0; count > 0 && in >> number; --count) numbers->push_back(number);
  return count == 0 && in >> word && word == "end";
}

std::string HolderOf(const std::string& name) {
  const std::string rest = name.substr(sizeof(kPinPrefix) - 1);
  return "process " + rest.substr(0, rest.find('-'));
}

}  // namespace

Status ReaderPin::Create(FileSystem* files, const std::string& folder,
                         std::unique_ptr<ReaderPin>* pin) {
  const std::string pins = folder + "/" + kPinFolder;
  if (!files->Exists(pins)) {  // a copy of a store may lack the empty folder
    const Status made = files->CreateFolder(pins);
    if (made.os_error() == EROFS) return Status::Ok();
    HPS_RETURN_IF_ERROR(made);
  }
  std::random_device random;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const std::string path =
        pins + "/" + kPinPrefix + std::to_string(getpid()) + "-" + std::to_string(random());
    std::unique_ptr<File> file;
    const Status opened = files->Open(path, OpenMode::kCreateNew, &file);
    if (opened.os_error() == EROFS) return Status::Ok();
    if (opened.os_error() == EEXIST) continue;
    HPS_RETURN_IF_ERROR(opened);
    bool taken = false;
    bool is_linked = false;
    HPS_RETURN_IF_ERROR(file->TryLock(false, &taken));
    // A writer may have met the file between its making and its lock, and cleaned it away.
    if (taken) HPS_RETURN_IF_ERROR(file->IsLinked(&is_linked));
    if (!taken || !is_linked) continue;
    pin->reset(new ReaderPin(files, std::move(file)));
    return Status::Ok();
  }
  return Status(StatusCode::kStore,
                pins + ": no pin could be made in " + std::to_string(kMostAttempts) + " attempts");
}

ReaderPin::~ReaderPin() {
  if (file_ == nullptr) return;
  (void)files_->Unlink(file_->path()).ok();  // a pin left behind is removed by the next writer
}

Status ReaderPin::Narrow(uint64_t checkpoint, const std::vector<uint64_t>& file_numbers) {
  std::ostringstream out;
  out << "checkpoint " << checkpoint << "\nfiles " << file_numbers.size();
  for (const uint64_t number : file_numbers) out << ' ' << number;
  out << "\nend\n";
  return file_->Write(0, out.str().data(), out.str().size());
}

Status ReadPins(FileSystem* files, const std::string& folder, PinnedFiles* pinned) {
  const std::string pins = folder + "/" + kPinFolder;
  std::vector<std::string> names;
  const Status listed = files->List(pins, &names);
  if (listed.os_error() == ENOENT) return Status::Ok();
  HPS_RETURN_IF_ERROR(listed);
  for (const std::string& name : names) {
    if (name.rfind(kPinPrefix, 0) != 0) continue;
    const std::string path = pins + "/" + name;
    std::unique_ptr<File> file;
    const Status opened = files->Open(path, OpenMode::kRead, &file);
    if (opened.os_error() == ENOENT) continue;
    bool is_dead = false;
    // One of another user, perhaps: what cannot be asked lives, and needs everything.
    if (!opened.ok() || !file->TryLock(true, &is_dead).ok()) {
      pinned->everything = true;
      pinned->holders.push_back(HolderOf(name));
      continue;
    }
    if (is_dead) {
      (void)files->Unlink(path).ok();  // else the next writer does it
      continue;
    }
    uint64_t size = 0;
    HPS_RETURN_IF_ERROR(file->Size(&size));
    std::string text(size, '\0');
    HPS_RETURN_IF_ERROR(file->Read(0, size, text.data()));
    uint64_t checkpoint = 0;
    std::vector<uint64_t> numbers;
    if (ParsePin(text, &checkpoint, &numbers)) {
      pinned->numbers.insert(numbers.begin(), numbers.end());
      pinned->holders.push_back(HolderOf(name) + " (checkpoint " + std::to_string(checkpoint) +
                                ")");
    } else {
      pinned->everything = true;
      pinned->holders.push_back(HolderOf(name));
    }
  }
  return Status::Ok();
}

}  // namespace hps
