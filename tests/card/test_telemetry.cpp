// What a card publishes is what it knows itself, and the file goes when its process does.
#include "../../torch_spyre/csrc/card/telemetry.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("telemetry." + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }

  const fs::path& path() const { return path_; }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) found.insert(entry.path().filename());
    return found;
  }
  void touch(const std::string& name) const { std::ofstream(path_ / name) << "x"; }

 private:
  const fs::path path_;
};

// The name of a page without its last number, the start time of the process.
std::string stem(const std::string& name) { return name.substr(0, name.rfind('.')); }

TEST(a_card_publishes_its_counters_its_memory_and_its_clock) {
  CardTelemetry published;
  {
    const auto card = open_software_card(
        {.index = 3, .memory_bytes = 64 << 20, .threads = 1, .telemetry = &published});
    CHECK_EQ(published.is_open.load(), 1);
    CHECK_EQ(published.memory_total.load(), 64 << 20);
    const Address address = card->allocate(1000, 0);
    CHECK_EQ(published.memory_used.load(), 1024);
    CHECK_EQ(published.memory_reserved.load(), card->memory_stats().reserved_bytes.current);

    auto how = std::make_shared<DmaDescriptor>();
    how->device_format = DataFormat::IEEE_FP32;
    how->host_format = HostFormat::Float32;
    how->nests = {{.range = {250}, .device_stride = {1}, .host_stride = {1}}};
    how->device_bytes = how->host_bytes = 1000;
    std::array<float, 250> host{};
    card->wait(card->copy_to_card(0, address, how, host.data(), nullptr));
    const Counters counters = card->counters();
    CHECK_EQ(published.transfers.load(), 1);
    CHECK_EQ(published.bytes_to_card.load(), counters.bytes_to_card);
    CHECK_EQ(published.to_card_busy.load(), counters.to_card_busy);
    CHECK_EQ(published.clock.load(), card->now());
    CHECK(card->now() > 0);

    card->inject({.kind = CardFault::Kind::EccError, .address = address});
    card->copy_to_card(0, address, how, host.data(), nullptr);
    CHECK(MESSAGE_OF(CardFault, card->synchronize()) != "");
    CHECK_EQ(published.fault.load(), static_cast<int>(CardFault::Kind::EccError) + 1);
    card->reset();
    CHECK_EQ(published.fault.load(), 0);
    card->free(address);
    CHECK_EQ(published.memory_used.load(), 0);
  }
  CHECK_EQ(published.is_open.load(), 0);
}

TEST(a_page_is_for_its_user_alone_and_goes_with_its_owner) {
  const Folder folder;
  {
    const auto page = TelemetryPage::create(folder.path());
    CHECK(page != nullptr);
    CHECK_EQ(folder.names().size(), 1);
    struct stat info{};
    CHECK_EQ(stat((folder.path() / *folder.names().begin()).c_str(), &info), 0);
    CHECK_EQ(info.st_mode & 0777, 0600);
    page->card(0).launches = 5;
    page->card(7).launches = 6;
  }
  CHECK(folder.names().empty());
}

TEST(a_forked_child_leaves_the_page_of_its_parent_alone) {
  const Folder folder;
  const auto page = TelemetryPage::create(folder.path());
  const pid_t child = fork();
  if (child == 0) {
    page->unlink();
    _exit(0);
  }
  int status = 1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(folder.names().size(), 1);
}

TEST(what_dead_processes_left_is_removed_and_nothing_else) {
  const Folder folder;
  std::string own;
  {
    const auto page = TelemetryPage::create(folder.path());
    own = *folder.names().begin();
  }
  const std::string space = stem(stem(own));
  const std::set<std::string> kept = {
      "foreign",
      "torch-spyre.notes",
      "torch-spyre.1.2.3",
      space + ".4194305.12.bak",
  };
  for (const std::string& name : kept) folder.touch(name);
  folder.touch(stem(own) + ".1");       // this number, but another process
  folder.touch(space + ".4194305.12");  // above the largest number of a process
  folder.touch(own);                    // this very process, before an exec
  const auto page = TelemetryPage::create(folder.path());
  CHECK(page != nullptr);
  std::set<std::string> expected = kept;
  expected.insert(own);
  CHECK(folder.names() == expected);
  CHECK(fs::file_size(folder.path() / own) > 1);
}

TEST(what_a_killed_process_left_goes_with_the_next_one_that_ends) {
  const Folder folder;
  auto page = TelemetryPage::create(folder.path());
  const pid_t child = fork();
  if (child == 0) {
    const auto of_child = TelemetryPage::create(folder.path());
    raise(SIGKILL);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(folder.names().size(), 2);
  page.reset();
  CHECK(folder.names().empty());
}

TEST(cards_do_without_a_page_where_there_is_no_room) {
  CHECK(TelemetryPage::create("/nonexistent") == nullptr);
}

}  // namespace
