#define _GNU_SOURCE

#include "shim.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

/* As src/lib.rs has them. */
static_assert(sizeof(struct trunkline_frame) == 24, "a frame as Rust has it");
static_assert(offsetof(struct trunkline_frame, length) == 16, "a frame as Rust has it");
static_assert(sizeof(struct trunkline_info) == 64, "an info as Rust has it");
static_assert(offsetof(struct trunkline_info, mac) == 26, "an info as Rust has it");
static_assert(offsetof(struct trunkline_info, driver) == 32, "an info as Rust has it");
static_assert(sizeof(struct trunkline_link) == 8, "a link as Rust has it");
static_assert(RTE_VERSION >= RTE_VERSION_NUM(22, 11, 0, 0), "build.rs asks for it");

/* Some drivers say that they failed, and not why. */
static int failed(int code)
{
	return code < 0 ? code : -EIO;
}

const char *trunkline_version(void)
{
	return rte_version();
}

const char *trunkline_error(int code)
{
	return rte_strerror(code);
}

/* The end of what DPDK logged. */
static struct {
	pthread_mutex_t lock;
	char text[8192];
	size_t length;
} log_kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ssize_t keep(void *cookie, const char *text, size_t length)
{
	size_t most = sizeof(log_kept.text) / 2;
	size_t tail = length < most ? length : most;

	(void)cookie;
	pthread_mutex_lock(&log_kept.lock);
	if (log_kept.length + tail > sizeof(log_kept.text)) {
		size_t old = log_kept.length < most ? log_kept.length : most;

		memmove(log_kept.text, log_kept.text + log_kept.length - old, old);
		log_kept.length = old;
	}
	memcpy(log_kept.text + log_kept.length, text + length - tail, tail);
	log_kept.length += tail;
	pthread_mutex_unlock(&log_kept.lock);
	return (ssize_t)length;
}

int trunkline_keep_log(void)
{
	cookie_io_functions_t calls = { .write = keep };
	FILE *stream = fopencookie(NULL, "w", calls);

	if (stream == NULL)
		return -errno;
	setvbuf(stream, NULL, _IONBF, 0);
	return rte_openlog_stream(stream) == 0 ? 0 : -EIO;
}

size_t trunkline_log(char *to, size_t room)
{
	size_t length;

	pthread_mutex_lock(&log_kept.lock);
	length = log_kept.length < room ? log_kept.length : room;
	memcpy(to, log_kept.text + log_kept.length - length, length);
	log_kept.length = 0;
	pthread_mutex_unlock(&log_kept.lock);
	return length;
}

int trunkline_init(int argc, char **argv)
{
	return rte_eal_init(argc, argv) < 0 ? failed(-rte_errno) : 0;
}

int trunkline_cleanup(void)
{
	return rte_eal_cleanup();
}

const char *trunkline_runtime_dir(void)
{
	return rte_eal_get_runtime_dir();
}

int trunkline_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -EEXIST;
	return rte_thread_register() == 0 ? 0 : failed(-rte_errno);
}

void trunkline_thread_unregister(void)
{
	rte_thread_unregister();
}

/* The port of the device of that name: a port need not be called as its device. */
static int find(const char *name, uint16_t *found)
{
	uint16_t port;

	if (rte_eth_dev_get_port_by_name(name, found) == 0)
		return 0;
	RTE_ETH_FOREACH_DEV(port) {
		struct rte_eth_dev_info info;

		if (rte_eth_dev_info_get(port, &info) == 0 && info.device != NULL &&
		    strcmp(rte_dev_name(info.device), name) == 0) {
			*found = port;
			return 0;
		}
	}
	return -ENODEV;
}

int trunkline_add(const char *devargs, const char *name, uint16_t *port)
{
	int added = rte_dev_probe(devargs);

	return added < 0 ? added : find(name, port);
}

int trunkline_join_rings(const char *name, struct rte_ring **rx, struct rte_ring **tx,
			 unsigned int count, uint16_t *port)
{
	int made = rte_eth_from_rings(name, rx, count, tx, count, SOCKET_ID_ANY);

	if (made < 0)
		return failed(-rte_errno);
	*port = (uint16_t)made;
	return 0;
}

int trunkline_info(uint16_t port, struct trunkline_info *info)
{
	struct rte_eth_dev_info found;
	struct rte_ether_addr mac;
	int code = rte_eth_dev_info_get(port, &found);

	if (code != 0)
		return failed(code);
	memset(info, 0, sizeof(*info));
	info->rss = found.flow_type_rss_offloads;
	info->if_index = found.if_index;
	info->max_frame = found.max_rx_pktlen;
	info->min_mtu = found.min_mtu;
	info->max_mtu = found.max_mtu;
	info->max_rx_queues = found.max_rx_queues;
	info->max_tx_queues = found.max_tx_queues;
	if (rte_eth_dev_get_mtu(port, &info->mtu) != 0)
		info->mtu = RTE_ETHER_MTU;
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	snprintf(info->driver, sizeof(info->driver), "%s", found.driver_name);
	return 0;
}

int trunkline_configure(uint16_t port, uint16_t queues, uint32_t mtu)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	int code = rte_eth_dev_info_get(port, &info);

	if (code != 0)
		return failed(code);
	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = mtu;
	/* All frames of a queue are of one pool, and nobody else holds them. */
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	if (queues > 1) {
		uint64_t hash = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;

		hash &= info.flow_type_rss_offloads;
		conf.rx_adv_conf.rss_conf.rss_hf = hash;
		conf.rxmode.mq_mode = hash != 0 ? RTE_ETH_MQ_RX_RSS : RTE_ETH_MQ_RX_NONE;
	}
	code = rte_eth_dev_configure(port, queues, queues, &conf);
	return code == 0 ? 0 : failed(code);
}

int trunkline_add_queue(uint16_t port, uint16_t queue, uint16_t frames, struct rte_mempool *pool)
{
	uint16_t rx = frames;
	uint16_t tx = frames;
	int code = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);

	if (code != 0)
		return failed(code);
	code = rte_eth_rx_queue_setup(port, queue, rx, SOCKET_ID_ANY, NULL, pool);
	if (code != 0)
		return failed(code);
	code = rte_eth_tx_queue_setup(port, queue, tx, SOCKET_ID_ANY, NULL);
	return code == 0 ? 0 : failed(code);
}

int trunkline_start(uint16_t port)
{
	int code = rte_eth_dev_start(port);

	return code == 0 ? 0 : failed(code);
}

static int remove_port(uint16_t port, struct rte_device *device)
{
	int code;

	/* What was never started does not stop. */
	rte_eth_dev_stop(port);
	code = rte_eth_dev_close(port);
	if (code != 0)
		return failed(code);
	return rte_dev_remove(device);
}

static int restart_port(uint16_t port, struct rte_device *device)
{
	int code;

	(void)device;
	rte_eth_dev_stop(port);
	code = rte_eth_dev_start(port);
	return code == 0 ? 0 : failed(code);
}

struct errand {
	int (*act)(uint16_t port, struct rte_device *device);
	uint16_t port;
	struct rte_device *device;
	int code;
	sem_t done;
};

static void run_errand(void *argument)
{
	struct errand *errand = argument;

	errand->code = errand->act(errand->port, errand->device);
	sem_post(&errand->done);
}

/* net_memif hears of the other end on the thread of interrupts, and is not made for anything else
 * at the same time: what is done to it is done on that thread, too. */
static int run(uint16_t port, int (*act)(uint16_t port, struct rte_device *device))
{
	struct errand errand = { .act = act, .port = port };
	struct rte_eth_dev_info info;
	int code = rte_eth_dev_info_get(port, &info);

	if (code != 0)
		return failed(code);
	errand.device = info.device;
	if (strcmp(info.driver_name, "net_memif") != 0 || sem_init(&errand.done, 0, 0) != 0)
		return act(port, info.device);
	if (rte_eal_alarm_set(1, run_errand, &errand) != 0)
		errand.code = act(port, info.device);
	else
		while (sem_wait(&errand.done) != 0)
			;
	sem_destroy(&errand.done);
	return errand.code;
}

int trunkline_restart(uint16_t port)
{
	return run(port, restart_port);
}

int trunkline_remove(uint16_t port)
{
	return run(port, remove_port);
}

int trunkline_set_mac(uint16_t port, const uint8_t mac[6])
{
	struct rte_ether_addr address;

	memcpy(address.addr_bytes, mac, sizeof(address.addr_bytes));
	return rte_eth_dev_default_mac_addr_set(port, &address);
}

int trunkline_hear_multicast(uint16_t port)
{
	return rte_eth_allmulticast_enable(port);
}

int trunkline_link(uint16_t port, struct trunkline_link *link)
{
	struct rte_eth_link found;
	int code = rte_eth_link_get_nowait(port, &found);

	if (code != 0)
		return failed(code);
	link->rate = found.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : found.link_speed;
	link->is_up = found.link_status == RTE_ETH_LINK_UP;
	return 0;
}

int trunkline_missed(uint16_t port, uint64_t *missed)
{
	struct rte_eth_stats stats;
	int code = rte_eth_stats_get(port, &stats);

	if (code != 0)
		return failed(code);
	*missed = stats.imissed + stats.rx_nombuf;
	return 0;
}

struct rte_mempool *trunkline_pool(const char *name, unsigned int frames, uint16_t room,
				   int *error)
{
	/* Threads that are registered keep some frames for themselves. */
	unsigned int cache = RTE_MIN(frames / 8, 256u);
	struct rte_mempool *pool = rte_pktmbuf_pool_create(
		name, frames, cache, 0, (uint16_t)(RTE_PKTMBUF_HEADROOM + room), SOCKET_ID_ANY);

	*error = pool == NULL ? failed(-rte_errno) : 0;
	return pool;
}

void trunkline_pool_free(struct rte_mempool *pool)
{
	rte_mempool_free(pool);
}

unsigned int trunkline_pool_free_frames(const struct rte_mempool *pool)
{
	return rte_mempool_avail_count(pool);
}

struct rte_ring *trunkline_ring(const char *name, unsigned int frames, int *error)
{
	struct rte_ring *ring = rte_ring_create(name, frames, SOCKET_ID_ANY,
						RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);

	*error = ring == NULL ? failed(-rte_errno) : 0;
	return ring;
}

void trunkline_ring_free(struct rte_ring *ring)
{
	rte_ring_free(ring);
}

uint16_t trunkline_receive(uint16_t port, uint16_t queue, struct trunkline_frame *frames,
			   uint16_t count)
{
	struct rte_mbuf *burst[TRUNKLINE_BURST];
	uint16_t got = rte_eth_rx_burst(port, queue, burst, RTE_MIN(count, TRUNKLINE_BURST));

	for (uint16_t at = 0; at < got; at++) {
		struct rte_mbuf *mbuf = burst[at];
		int cut = mbuf->nb_segs > 1 && rte_pktmbuf_linearize(mbuf) != 0;

		frames[at] = (struct trunkline_frame){
			.mbuf = mbuf,
			.data = rte_pktmbuf_mtod(mbuf, uint8_t *),
			.length = mbuf->data_len,
			.room_or_cut = (uint32_t)cut,
		};
	}
	return got;
}

int trunkline_allocate(struct rte_mempool *pool, struct trunkline_frame *frames, uint16_t count)
{
	struct rte_mbuf *burst[TRUNKLINE_BURST];

	count = RTE_MIN(count, TRUNKLINE_BURST);
	if (rte_pktmbuf_alloc_bulk(pool, burst, count) != 0)
		return -ENOMEM;
	for (uint16_t at = 0; at < count; at++)
		frames[at] = (struct trunkline_frame){
			.mbuf = burst[at],
			.data = rte_pktmbuf_mtod(burst[at], uint8_t *),
			.length = 0,
			.room_or_cut = rte_pktmbuf_tailroom(burst[at]),
		};
	return count;
}

uint16_t trunkline_send(uint16_t port, uint16_t queue, const struct trunkline_frame *frames,
			uint16_t count)
{
	struct rte_mbuf *burst[TRUNKLINE_BURST];

	count = RTE_MIN(count, TRUNKLINE_BURST);
	for (uint16_t at = 0; at < count; at++) {
		struct rte_mbuf *mbuf = frames[at].mbuf;

		mbuf->data_len = (uint16_t)frames[at].length;
		mbuf->pkt_len = frames[at].length;
		burst[at] = mbuf;
	}
	return rte_eth_tx_burst(port, queue, burst, count);
}

void trunkline_free(const struct trunkline_frame *frames, uint16_t count)
{
	struct rte_mbuf *burst[TRUNKLINE_BURST];

	count = RTE_MIN(count, TRUNKLINE_BURST);
	for (uint16_t at = 0; at < count; at++)
		burst[at] = frames[at].mbuf;
	rte_pktmbuf_free_bulk(burst, count);
}
