// rdma_bcast over libfabric's verbs;ofi_rxm: fi_send and fi_recv of RDM endpoints. Large messages
// go by a read of the receiver's, for which ofi_rxm registers the sender's buffer for remote
// reading whatever is asked.
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdmalloc/registrar_libfabric.h>
#include <string.h>

#include <cstdint>

#include "bench/rdma/fabric.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kLongestName = 256;

void check(const char* what, long error) {
  if (error < 0) fail(what, error < -FI_ERRNO_OFFSET ? -EIO : error);
}

class Libfabric : public Fabric {
 public:
  Libfabric(KeySource keys, int socket) {
    // Read once, at the first call of libfabric.
    if (keys != KeySource::fabric) setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
    // Soft-RoCE's completion queues are too short for the default.
    setenv("FI_UNIVERSE_SIZE", "16", 0);
    open();
    if (keys == KeySource::rdmalloc)
      if (int error = rdmalloc_domain_open_libfabric(domain_, info_, nullptr, &cache_))
        fail("rdmalloc_domain_open_libfabric", error);
    connect(socket);
  }
  ~Libfabric() override {
    if (cache_ != nullptr) rdmalloc_domain_close(cache_);
    fi_close(&endpoint_->fid);
    fi_close(&queue_->fid);
    fi_close(&addresses_->fid);
    fi_close(&domain_->fid);
    fi_close(&fabric_->fid);
    fi_freeinfo(info_);
  }
  Libfabric(const Libfabric&) = delete;
  Libfabric& operator=(const Libfabric&) = delete;

  void send(void* buffer, std::size_t bytes) override {
    Registered registered(*this, buffer, bytes, FI_SEND);
    fi_context context = {};
    long error;
    while ((error = fi_send(endpoint_, buffer, bytes, registered.descriptor(), other_, &context)) ==
           -FI_EAGAIN)
      fi_cq_read(queue_, nullptr, 0);
    check("fi_send", error);
    await();
  }
  void receive(void* buffer, std::size_t bytes, void (*posted)(void*), void* argument) override {
    Registered registered(*this, buffer, bytes, FI_RECV);
    fi_context context = {};
    check("fi_recv", fi_recv(endpoint_, buffer, bytes, registered.descriptor(), other_, &context));
    posted(argument);
    await();
  }

 private:
  // A buffer's registration, for the time of one transfer.
  class Registered {
   public:
    Registered(Libfabric& fabric, void* buffer, std::size_t bytes, std::uint64_t access) {
      if (fabric.cache_ == nullptr) {
        check("fi_mr_reg",
              fi_mr_reg(fabric.domain_, buffer, bytes, access, 0, 0, 0, &own_, nullptr));
        descriptor_ = fi_mr_desc(own_);
      } else {
        if (int error =
                rdmalloc_reg_get(fabric.cache_, buffer, bytes, RDMALLOC_ACCESS_LOCAL, &cached_))
          fail("rdmalloc_reg_get", error);
        rdmalloc_key key;
        rdmalloc_reg_key_of(cached_, &key);
        descriptor_ = reinterpret_cast<void*>(key.lkey);
      }
    }
    ~Registered() {
      if (own_ != nullptr) fi_close(&own_->fid);
      rdmalloc_reg_put(cached_);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    void* descriptor() const { return descriptor_; }

   private:
    fid_mr* own_ = nullptr;
    rdmalloc_reg* cached_ = nullptr;
    void* descriptor_ = nullptr;
  };

  void open() {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
    long error = fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints, &info_);
    fi_freeinfo(hints);
    check("fi_getinfo finds no verbs;ofi_rxm", error);
    check("fi_fabric", fi_fabric(info_->fabric_attr, &fabric_, nullptr));
    check("fi_domain", fi_domain(fabric_, info_, &domain_, nullptr));
    fi_cq_attr queue = {};
    queue.format = FI_CQ_FORMAT_CONTEXT;
    queue.size = 16;
    check("fi_cq_open", fi_cq_open(domain_, &queue, &queue_, nullptr));
    fi_av_attr addresses = {};
    addresses.type = FI_AV_TABLE;
    check("fi_av_open", fi_av_open(domain_, &addresses, &addresses_, nullptr));
    check("fi_endpoint", fi_endpoint(domain_, info_, &endpoint_, nullptr));
    check("fi_ep_bind", fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV));
    check("fi_ep_bind", fi_ep_bind(endpoint_, &addresses_->fid, 0));
    check("fi_enable", fi_enable(endpoint_));
  }

  void connect(int socket) {
    char own[kLongestName] = {}, other[kLongestName];
    std::size_t bytes = sizeof own;
    check("fi_getname", fi_getname(&endpoint_->fid, own, &bytes));
    put(socket, own, sizeof own);
    get(socket, other, sizeof other);
    if (fi_av_insert(addresses_, other, 1, &other_, 0, nullptr) != 1) fail("fi_av_insert", -EINVAL);
  }

  void await() {
    fi_cq_entry entry;
    long got;
    for (Patience patience; (got = fi_cq_read(queue_, &entry, 1)) == -FI_EAGAIN;)
      patience.found_nothing();
    check("the transfer failed", got);
  }

  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t other_ = 0;
  rdmalloc_domain* cache_ = nullptr;
};

}  // namespace

std::unique_ptr<Fabric> open_libfabric(KeySource keys, int socket) {
  return std::make_unique<Libfabric>(keys, socket);
}

}  // namespace rdmalloc::bench
