// Opening a store: the lock, the manifest, the check of schemas, and the load of the current cut.
//
// Above it: store.h. Below it: manifest, reader_pin, table_store.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <sstream>
#include <thread>

#include "ssd_store/held_folder.h"
#include "ssd_store/store.h"

namespace hps {
namespace {

constexpr uint64_t kReservedNumbers = uint64_t{1} << 20;  // file numbers taken at each open
constexpr int kMostReaderAttempts = 50;
constexpr size_t kLongestHolder = 256;
constexpr uint64_t kRowsOfOneThread = 1 << 16;  // where threads cost more than they save

std::string Describe(double first, double second) {
  std::ostringstream out;
  out << '(' << first << ", " << second << ')';
  return out.str();
}

Status Mismatch(const std::string& subject, const std::string& field, const std::string& stored,
                const std::string& value) {
  return Status(StatusCode::kConfig, subject + ": stored " + field + " is " + stored +
                                         ", asked is " + value +
                                         "; it is fixed once the store exists: ask for the stored "
                                         "one, or use another path");
}

const char* KindName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kRowWiseAdagrad:
      return "rowwise_adagrad";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kFtrl:
      return "ftrl";
  }
  return "unknown";
}

Status CompareSchemas(const TableSchema& stored, const TableSchema& asked) {
  const std::string table = "table '" + asked.name + "'";
  if (stored.dim != asked.dim) {
    return Mismatch(table, "dim", std::to_string(stored.dim), std::to_string(asked.dim));
  }
  if (stored.kind != asked.kind) {
    return Mismatch(table, "optimizer", KindName(stored.kind), KindName(asked.kind));
  }
  if (stored.row_bytes != asked.row_bytes) {
    return Mismatch(table, "row_bytes", std::to_string(stored.row_bytes),
                    std::to_string(asked.row_bytes));
  }
  const double* left = stored.initializer_numbers;
  const double* right = asked.initializer_numbers;
  if (stored.initializer != asked.initializer || left[0] != right[0] || left[1] != right[1]) {
    return Mismatch(table, "initializer", stored.initializer + Describe(left[0], left[1]),
                    asked.initializer + Describe(right[0], right[1]));
  }
  return Status::Ok();
}

const TableSchema* FindSchema(const std::vector<TableSchema>& schemas, const std::string& name) {
  for (const TableSchema& schema : schemas) {
    if (schema.name == name) return &schema;
  }
  return nullptr;
}

void TakeWritten(const Checkpoint& cut, StoreContext* context) {
  for (const Extra& extra : cut.extras) {
    if (extra.name != kWrittenName) continue;
    Decoder in(extra.bytes);
    context->bytes_appended += in.Get<uint64_t>();
    context->bytes_compacted += in.Get<uint64_t>();
    context->bytes_overhead += in.Get<uint64_t>();
  }
}

// What is told to whoever cannot be the writer.
constexpr char kReadInstead[] =
    "; a writer needs this file: get the right to write it, or only read the store "
    "(hps.open(path, read_only=True))";
constexpr char kReadBeside[] =
    ", or read beside it: hps.open(path, read_only=True), hps stats, evaluate, export and clone do";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// Of the text of a LOCK: "<pid> <host>". The writer may not have written it yet, and another
// program may have written anything.
std::string HolderInWords(std::string text) {
  if (text.size() > kLongestHolder) text.resize(kLongestHolder);
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  const size_t space = text.find(' ');
  const std::string pid = text.substr(0, space);
  if (pid.empty()) return "another process";
  const std::string host = space == std::string::npos ? "" : text.substr(space + 1);
  return "process " + pid + (host.empty() ? "" : " of host " + host);
}

// Of a LOCK that may have been removed.
Status HeldByAnother(FileSystem* files, const std::string& folder) {
  std::string text;
  (void)ReadWholeFile(files, folder + "/" + kLockName, &text).ok();
  return Status(StatusCode::kStore,
                folder + ": the store is open for writing by " + HolderInWords(std::move(text)) +
                    "; end it first" + kReadBeside,
                EAGAIN);
}

}  // namespace

Status SsdStore::Open(FileSystem* files, const StoreOptions& options,
                      std::unique_ptr<SsdStore>* store) {
  StoreOptions absolute = options;  // the working directory may change
  absolute.path = AbsolutePath(options.path);
  if (!options.read_only) HPS_RETURN_IF_ERROR(CreateFolders(files, absolute.path));
  std::unique_ptr<FileSystem> held;
  const Status holds = files->HoldFolder(absolute.path, &held);
  if (holds.os_error() == ENOENT || holds.os_error() == ENOTDIR) {
    return Status(StatusCode::kStore, absolute.path + ": there is no store here", ENOENT);
  }
  HPS_RETURN_IF_ERROR(holds);
  std::unique_ptr<SsdStore> opened(new SsdStore(files, std::move(held), absolute));
  HPS_RETURN_IF_ERROR(options.read_only ? opened->OpenReader() : opened->OpenWriter());
  if (options.direct_io) {
    // Tried here, so that no fetch is the first to be refused.
    std::unique_ptr<File> current;
    char first = 0;
    const std::string path = absolute.path + "/" + kCurrentName;
    HPS_RETURN_IF_ERROR(opened->files_->Open(path, OpenMode::kReadDirect, &current));
    HPS_RETURN_IF_ERROR(current->Read(0, 1, &first));
  }
  *store = std::move(opened);
  return Status::Ok();
}

Status SsdStore::LockFolder(FileSystem* files, const std::string& folder,
                            std::unique_ptr<File>* lock) {
  // The folder first: who finds its lock taken has not put a LOCK beside the one that is held.
  bool taken = false;
  HPS_RETURN_IF_ERROR(files->TryLockFolder(&taken));
  if (!taken) return HeldByAnother(files, folder);
  const std::string path = folder + "/" + kLockName;
  const Status opened = files->Open(path, OpenMode::kCreate, lock);
  if (opened.os_error() == EACCES || opened.os_error() == EROFS) {
    return Status(opened.code(), opened.message() + kReadInstead, opened.os_error());
  }
  HPS_RETURN_IF_ERROR(opened);
  HPS_RETURN_IF_ERROR((*lock)->TryLock(true, &taken));
  if (!taken) return HeldByAnother(files, folder);
  files->Guard(lock->get());
  HPS_RETURN_IF_ERROR(files->CheckHeld());
  const std::string holder = std::to_string(getpid()) + " " + HostName();
  HPS_RETURN_IF_ERROR((*lock)->Truncate(0));
  return (*lock)->Write(0, holder.data(), holder.size());
}

Status SsdStore::CreateManifest() {
  std::vector<std::string> names;
  HPS_RETURN_IF_ERROR(files_->List(options_.path, &names));
  uint64_t last = 0;
  for (const std::string& name : names) {
    uint64_t number = 0;
    if (ParseFileName(name, kSegmentPrefix, &number) ||
        ParseFileName(name, kExtraPrefix, &number)) {
      return Corruption(options_.path + "/" + kCurrentName, 0,
                        "the file is missing, but the store has " + name);
    }
    if (ParseFileName(name, kManifestPrefix, &number)) last = std::max(last, number);
  }
  OpenRecord open;
  std::random_device random;
  open.store_id = uint64_t{random()} << 32 | random();
  open.seed = options_.seed;
  next_number_ = last + 2;
  open.reserved_end = next_number_ + kReservedNumbers;
  HPS_RETURN_IF_ERROR(MergeSchemas(&open));
  // Whoever made the folder may have died before its name was durable. One that may not be read
  // was made by somebody else, and long ago.
  const Status named = files_->SyncFolder(ParentOf(options_.path));
  if (!named.ok() && named.os_error() != EACCES) return named;
  bool is_begun = false;
  return manifest_.Start(last + 1, open, &is_begun);
}

Status SsdStore::MergeSchemas(OpenRecord* open) const {
  uint32_t next_id = 1;
  for (const TableSchema& schema : open->tables) next_id = std::max(next_id, schema.id + 1);
  for (const TableSchema& asked : options_.tables) {
    if (FindSchema(open->tables, asked.name) != nullptr) continue;
    open->tables.push_back(asked);
    open->tables.back().id = next_id++;
  }
  return Status::Ok();
}

Status SsdStore::CheckSchemas() const {
  const OpenRecord& open = manifest_.state().open;
  if (options_.has_seed && open.seed != options_.seed) {
    return Mismatch(options_.path, "seed", std::to_string(open.seed),
                    std::to_string(options_.seed));
  }
  for (const TableSchema& asked : options_.tables) {
    const TableSchema* stored = FindSchema(open.tables, asked.name);
    if (stored != nullptr) {
      HPS_RETURN_IF_ERROR(CompareSchemas(*stored, asked));
    } else if (options_.read_only) {
      return Status(StatusCode::kConfig,
                    options_.path + ": the store has no table '" + asked.name + "'");
    }
  }
  return Status::Ok();
}

Status SsdStore::OpenWriter() {
  HPS_RETURN_IF_ERROR(CreateFolders(files_, options_.path + "/" + kPinFolder));
  HPS_RETURN_IF_ERROR(LockFolder(files_, options_.path, &lock_));
  if (!files_->Exists(options_.path + "/" + kCurrentName)) {
    HPS_RETURN_IF_ERROR(CreateManifest());
  } else {
    HPS_RETURN_IF_ERROR(manifest_.Load(true));
    HPS_RETURN_IF_ERROR(CheckSchemas());
    OpenRecord open = manifest_.state().open;
    next_number_ = open.reserved_end;
    open.reserved_end = next_number_ + kReservedNumbers;
    HPS_RETURN_IF_ERROR(MergeSchemas(&open));
    HPS_RETURN_IF_ERROR(CommitRecord(RecordKind::kOpen, EncodeOpen(open)));
  }
  HPS_RETURN_IF_ERROR(MakeTables(manifest_.state().Current()));
  std::vector<std::string> holders;
  (void)RemoveUnneeded(&holders).ok();
  return StartCompactor();
}

Status SsdStore::OpenReader() {
  if (!files_->Exists(options_.path + "/" + kCurrentName)) {
    return Status(StatusCode::kStore, options_.path + ": there is no store here", ENOENT);
  }
  HPS_RETURN_IF_ERROR(ReaderPin::Create(files_, options_.path, &pin_));
  // A writer may replace the manifest between the reading of CURRENT and of the file that it names.
  Status loaded;
  for (int attempt = 0; attempt < kMostReaderAttempts; ++attempt) {
    loaded = manifest_.Load(false);
    if (loaded.os_error() != ENOENT) break;
  }
  HPS_RETURN_IF_ERROR(loaded);
  HPS_RETURN_IF_ERROR(CheckSchemas());
  reader_cut_ = manifest_.state().current;
  const Checkpoint* cut = nullptr;
  HPS_RETURN_IF_ERROR(Resolve(options_.checkpoint, &cut));
  reader_cut_ = cut == nullptr ? 0 : cut->id;
  HPS_RETURN_IF_ERROR(MakeTables(cut));
  if (pin_ == nullptr) return Status::Ok();
  return pin_->Narrow(reader_cut_, cut == nullptr ? std::vector<uint64_t>() : cut->FileNumbers());
}

Status SsdStore::MakeTables(const Checkpoint* cut) {
  const OpenRecord& open = manifest_.state().open;
  context_.store_id = open.store_id;
  const auto add = [this](const TableSchema& schema) {
    tables_.push_back(std::make_unique<TableStore>(&context_, schema));
  };
  for (const TableSchema& asked : options_.tables) add(*FindSchema(open.tables, asked.name));
  for (const TableSchema& stored : open.tables) {
    if (FindSchema(options_.tables, stored.name) == nullptr) add(stored);
  }
  if (cut != nullptr) TakeWritten(*cut, &context_);
  return options_.has_rows ? LoadCut(cut) : Status::Ok();
}

int SsdStore::NumLoadThreads(const Checkpoint* cut) const {
  uint64_t num_rows = 0;
  for (size_t i = 0; cut != nullptr && i < cut->tables.size(); ++i) {
    num_rows += cut->tables[i].num_rows;
  }
  return num_rows < kRowsOfOneThread ? 1 : NumThreads();
}

int SsdStore::NumThreads() const {
  if (options_.num_threads > 0) return options_.num_threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Status SsdStore::TakeNumber(uint64_t* number) {
  if (next_number_ == manifest_.state().open.reserved_end) {
    OpenRecord open = manifest_.state().open;
    open.reserved_end += kReservedNumbers;
    bool is_begun = false;
    const auto sync = [](File* current) { return current->SyncData(); };
    const Status status = manifest_.Commit(RecordKind::kOpen, EncodeOpen(open), sync, &is_begun);
    if (!status.ok()) return SettleIfBegun(status, is_begun);
  }
  *number = next_number_++;
  return Status::Ok();
}

}  // namespace hps
